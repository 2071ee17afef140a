-- The lowest id that an intent accepted at or after this moment can have. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.lowest_intent_id(p_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT (lpad(to_hex(floor(extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.lowest_intent_id(timestamptz) FROM PUBLIC;
