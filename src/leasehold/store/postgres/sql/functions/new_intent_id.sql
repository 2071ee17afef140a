-- A UUIDv7: 48 bits of the database's clock in milliseconds, then random. Written out because the
-- server's own uuidv7() exists only from version 18 on. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.new_intent_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
  -- A version 4 UUID has 0100 in its version bits; setting the low two of them makes it 0111.
  SELECT encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.new_intent_id() FROM PUBLIC;
