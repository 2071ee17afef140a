-- Lock up to p_limit rows of scope cluster and stream that are past their deadline and that nobody can be calling,
-- whether somebody holds their lease or not. Rows that are in doubt or await confirmation are left out, and so is a
-- call that may be in flight: one that was begun, or marked and not yet recorded.
-- A leader marks calls without locking their rows. So this function first looks, then locks the call marks of the
-- leases that it found, and then looks again. It leaves out a lease whose marks somebody is changing: there is a
-- leader at work, or an operator. After that, a leader that wants to mark one of the rows waits for this
-- transaction and finds the row finished.
-- Locks: the call marks of cluster leases, then the rows; never waits. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_missed_under_leases(p_limit integer) RETURNS SETOF leasehold.outbox_pending
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_ids uuid[];
  v_cluster_leases text[];
BEGIN
  SELECT array_agg(missed.intent_id), array_agg(DISTINCT missed.lease_name) FILTER (WHERE missed.scope = 'cluster')
    INTO v_ids, v_cluster_leases
    FROM (
      -- The conditions are those of the index.
      SELECT p.intent_id, p.scope, p.lease_name FROM leasehold.outbox_pending p
       WHERE p.scope <> 'item' AND p.begun_epoch IS NULL
         AND (p.last_state IS NULL OR p.last_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE'))
         AND p.deadline_at IS NOT NULL AND p.deadline_at <= clock_timestamp()
         AND (p.intent_id, p.attempt_count + 1) NOT IN (
           SELECT call.intent_id, call.attempt_no
             FROM leasehold.call_marks mark
            CROSS JOIN unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no))
       ORDER BY p.deadline_at
       LIMIT p_limit) AS missed;
  IF v_ids IS NULL THEN
    RETURN;
  END IF;
  v_cluster_leases := ARRAY(SELECT name FROM unnest(v_cluster_leases) AS name WHERE leasehold.try_lock_call_marks(name));

  RETURN QUERY
  SELECT p.* FROM leasehold.outbox_pending p
   WHERE p.intent_id = ANY (v_ids) AND p.begun_epoch IS NULL
     AND (p.last_state IS NULL OR p.last_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE'))
     AND (p.scope = 'stream' OR p.lease_name = ANY (v_cluster_leases))
     AND (p.intent_id, p.attempt_count + 1) NOT IN (
       SELECT call.intent_id, call.attempt_no
         FROM leasehold.call_marks mark
        CROSS JOIN unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no))
   ORDER BY p.intent_id
     FOR UPDATE OF p SKIP LOCKED;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_missed_under_leases(integer) FROM PUBLIC;
