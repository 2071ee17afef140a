-- Return the lowest id that an intent can have that is accepted at or after p_at. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.lowest_intent_id(p_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT (lpad(to_hex(floor(extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.lowest_intent_id(timestamptz) FROM PUBLIC;
