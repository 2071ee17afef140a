-- Return when an intent was accepted, to the millisecond. The time is part of the id. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.intent_accepted_at(p_intent_id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT to_timestamp(('x' || lpad(left(replace(p_intent_id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0)
$$;
REVOKE ALL ON FUNCTION leasehold.intent_accepted_at(uuid) FROM PUBLIC;
