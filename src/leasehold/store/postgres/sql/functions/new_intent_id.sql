-- Return a new UUIDv7: 48 bits of the database's clock in milliseconds, then bits that differ from other ids of
-- the same millisecond. PostgreSQL has uuidv7() only from version 18 on.
-- The id is not a secret, so random() is good enough. gen_random_uuid() would take 10 percent of an enqueue on
-- a server without OpenSSL, which opens a device for each call. The process id keeps sessions with the same
-- random seed apart. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.new_intent_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
  -- The 13th digit is the version, the 17th the variant.
  SELECT overlay(
    overlay(md5(random()::text || random()::text || pg_backend_pid()::text)
      PLACING lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' FROM 1)
    PLACING '8' FROM 17)::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.new_intent_id() FROM PUBLIC;
