-- Return the verdict on an intent that has no pending row: already_terminal or not_found. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.missing_verdict(p_intent_id uuid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT CASE WHEN EXISTS (
    SELECT FROM leasehold.outbox_attempts
     WHERE intent_id = p_intent_id AND state IN ('DISPATCHED', 'FAILED', 'CANCELLED')
  ) THEN 'already_terminal' ELSE 'not_found' END
$$;
REVOKE ALL ON FUNCTION leasehold.missing_verdict(uuid) FROM PUBLIC;
