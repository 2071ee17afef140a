-- Lock the pending rows of results, and return the ids of those that another transaction has locked: these are not waited for,
-- so that one row that is locked for long holds up no other result.
-- Locks: the pending rows by id, SKIP LOCKED.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_pending_rows(p_outcomes leasehold.outcome[]) RETURNS uuid[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_ids uuid[] := ARRAY(SELECT o.intent_id FROM unnest(p_outcomes) AS o);
  v_ours uuid[] := ARRAY(SELECT p.intent_id FROM leasehold.outbox_pending p
                          WHERE p.intent_id = ANY (v_ids) ORDER BY p.intent_id FOR UPDATE SKIP LOCKED);
BEGIN
  IF v_ours = v_ids THEN
    RETURN '{}';
  END IF;
  RETURN ARRAY(SELECT p.intent_id FROM leasehold.outbox_pending p
                WHERE p.intent_id = ANY (v_ids) AND p.intent_id NOT IN (SELECT unnest(v_ours)));
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_pending_rows(leasehold.outcome[]) FROM PUBLIC;
