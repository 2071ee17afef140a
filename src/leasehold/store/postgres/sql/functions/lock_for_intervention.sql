-- Lock an unfinished intent for an intervention, and say whether it is in flight: a worker has claimed it, a
-- call has begun, or a leader has marked its call. It stays in flight when the claim or lease has expired,
-- because repair or the next leader must write its ledger row first. A row of a stream that another transaction has locked
-- counts as in flight too: whoever waited for it would meanwhile keep the stream's holder from its lease.
-- Locks: for scope stream the lease row FOR NO KEY UPDATE, then the pending row if nobody has it; else the pending row, then
-- for scope cluster the call marks of the lease. So nobody waits for a row and holds what a leader or holder needs meanwhile.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_for_intervention(
  p_intent_id uuid, OUT pending leasehold.outbox_pending, OUT is_in_flight boolean
)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  SELECT p.* INTO pending FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id;
  IF pending.scope = 'stream' THEN
    PERFORM FROM leasehold.leases l WHERE l.lease_name = pending.lease_name FOR NO KEY UPDATE;
    SELECT p.* INTO pending FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id FOR UPDATE SKIP LOCKED;
    is_in_flight := NOT FOUND OR pending.begun_at IS NOT NULL;
    IF NOT FOUND THEN
      SELECT p.* INTO pending FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id;
    END IF;
    RETURN;
  END IF;
  SELECT p.* INTO pending FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id FOR UPDATE;
  IF pending.scope = 'cluster' THEN
    PERFORM leasehold.lock_call_marks(pending.lease_name);
  END IF;
  -- In a statement after the lock, so that it sees what the leader has just marked.
  is_in_flight := pending.begun_at IS NOT NULL OR pending.claimed_by IS NOT NULL
    OR EXISTS (SELECT FROM leasehold.call_marks mark
                CROSS JOIN unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no)
                WHERE mark.lease_name = pending.lease_name AND pending.scope = 'cluster'
                  AND call.intent_id = p_intent_id AND call.attempt_no = pending.attempt_count + 1);
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_for_intervention(uuid) FROM PUBLIC;
