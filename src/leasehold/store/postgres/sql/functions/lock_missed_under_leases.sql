-- Lock up to p_limit rows of scope cluster and stream that are past their deadline and that nobody can be calling,
-- whether somebody holds their cluster lease or not. Of a stream it is the head, if nobody holds the stream: a holder ends
-- its head itself, and an earlier row must end before a later one. Rows that are in doubt or await confirmation are left
-- out, and so is a call that may be in flight: one that was begun, or marked and not yet recorded.
-- A leader marks calls without locking their rows. So this function first looks, then locks the call marks of the
-- leases that it found, and then looks again. It leaves out a lease whose marks somebody is changing: there is a
-- leader at work, or an operator. After that, a leader that wants to mark one of the rows waits for this
-- transaction and finds the row finished.
-- Locks: the call marks of cluster leases and the lease rows of streams FOR NO KEY UPDATE, then the rows; never waits.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_missed_under_leases(p_limit integer) RETURNS SETOF leasehold.outbox_pending
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_ids uuid[];
  v_cluster_leases text[];
  v_streams text[];
BEGIN
  SELECT array_agg(missed.intent_id), array_agg(DISTINCT missed.lease_name) FILTER (WHERE missed.scope = 'cluster'),
         array_agg(DISTINCT missed.lease_name) FILTER (WHERE missed.scope = 'stream')
    INTO v_ids, v_cluster_leases, v_streams
    FROM (
      -- The conditions are those of the index.
      SELECT p.intent_id, p.scope, p.lease_name FROM leasehold.outbox_pending p
       WHERE (p.scope = 'cluster' AND p.begun_epoch IS NULL OR p.is_claimable)
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
  WITH free AS MATERIALIZED (
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (v_streams) AND l.expires_at = '-infinity'
     ORDER BY l.lease_name FOR NO KEY UPDATE SKIP LOCKED
  )
  SELECT array_agg(free.lease_name) INTO v_streams FROM free;

  RETURN QUERY
  SELECT p.* FROM leasehold.outbox_pending p
   WHERE p.intent_id = ANY (v_ids)
     AND (p.scope = 'cluster' AND p.begun_epoch IS NULL AND p.lease_name = ANY (v_cluster_leases)
          OR p.is_claimable AND p.lease_name = ANY (v_streams) AND NOT EXISTS (
            SELECT FROM leasehold.outbox_pending earlier
             WHERE earlier.scope = 'stream' AND earlier.target = p.target AND earlier.stream = p.stream
               AND earlier.stream_seq < p.stream_seq AND NOT earlier.awaits_confirmation))
     AND (p.last_state IS NULL OR p.last_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE'))
     AND (p.intent_id, p.attempt_count + 1) NOT IN (
       SELECT call.intent_id, call.attempt_no
         FROM leasehold.call_marks mark
        CROSS JOIN unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no))
   ORDER BY p.intent_id
     FOR UPDATE OF p SKIP LOCKED;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_missed_under_leases(integer) FROM PUBLIC;
