-- A UUIDv7: 48 bits of the database's clock in milliseconds, then what no other id of that millisecond has.
-- Written out because the server's own uuidv7() exists only from version 18 on, and from the session's own
-- random numbers: an id is no secret, and a server without OpenSSL opens a device for each secret that it draws,
-- which took a tenth of an enqueue. The process in it keeps apart sessions that were given the same seed.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.new_intent_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
  -- 13th digit: the version; 17th: the variant.
  SELECT overlay(
    overlay(md5(random()::text || random()::text || pg_backend_pid()::text)
      PLACING lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' FROM 1)
    PLACING '8' FROM 17)::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.new_intent_id() FROM PUBLIC;
