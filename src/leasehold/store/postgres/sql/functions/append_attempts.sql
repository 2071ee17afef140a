-- The heart of the state machine: append exactly one ledger row per outcome and move its pending
-- row. Callers have locked the pending rows, verified the fence and then read p_now.
--   terminal state          the pending row goes
--   RETRYABLE, ZOMBIE_REQUEUE   due again after retry_after_seconds; FAILED instead when the contract's
--                           attempts are spent (reason max_attempts, one_shot) or the deadline would pass
--   IN_DOUBT                by guarantee: keyed, fenced: try again; lookup, and keyed past its window: ask
--                           after the quarantine; blind, and keyed or fenced with no attempt left: held
--   SUBMITTED               asked about after retry_after_seconds
-- attempt_no comes from the ledger, which is the truth; attempt_count is its cache.
-- Locks: pending rows, already held by the caller. Raises: nothing of its own.
CREATE OR REPLACE FUNCTION leasehold.append_attempts(p_outcomes leasehold.outcome[], p_now timestamptz)
RETURNS TABLE (intent_id uuid, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH weighed AS MATERIALIZED (
    SELECT o.*, p.begun_at, p.deadline_at, c.guarantee, c.quarantine_seconds, c.retry_policy,
           ledger.attempt_no,
           ledger.attempt_no >= c.attempts_max AS is_spent,
           p_now > p.first_tried_at + make_interval(secs => c.key_window_seconds) AS is_past_key_window,
           p_now + make_interval(secs => coalesce(o.retry_after_seconds, 0)) AS again_at
      FROM unnest(p_outcomes) AS o
      JOIN leasehold.outbox_pending p USING (intent_id)
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     CROSS JOIN LATERAL (
       SELECT coalesce(max(a.attempt_no), 0) + 1 AS attempt_no
         FROM leasehold.outbox_attempts a WHERE a.intent_id = o.intent_id) AS ledger
  ), ended AS MATERIALIZED (
    SELECT w.*,
           CASE WHEN w.state NOT IN ('RETRYABLE', 'ZOMBIE_REQUEUE') THEN NULL
                WHEN w.is_spent THEN CASE w.retry_policy WHEN 'one_shot' THEN 'one_shot' ELSE 'max_attempts' END
                WHEN w.again_at >= w.deadline_at THEN 'deadline_exceeded'
           END AS exhausted_by,
           CASE WHEN w.state <> 'IN_DOUBT' THEN w.again_at
                WHEN w.guarantee = 'blind' THEN 'infinity'
                WHEN w.guarantee = 'lookup' OR w.guarantee = 'keyed' AND w.is_past_key_window
                  THEN p_now + make_interval(secs => w.quarantine_seconds)
                WHEN w.is_spent THEN 'infinity'
                ELSE w.again_at END AS next_due_at
      FROM weighed w
  ), decided AS MATERIALIZED (
    SELECT e.*, coalesce(e.exhausted_by, e.reason) AS final_reason,
           CASE WHEN e.exhausted_by IS NULL THEN e.state ELSE 'FAILED' END AS final_state,
           e.exhausted_by IS NOT NULL OR e.state IN ('DISPATCHED', 'FAILED', 'CANCELLED') AS is_final
      FROM ended e
  ), appended AS (
    INSERT INTO leasehold.outbox_attempts (
      intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at,
      finished_at, reference, code, detail)
    SELECT intent_id, attempt_no, final_state, final_reason, holder, lease_token, lease_name, lease_epoch,
           least(coalesce(begun_at, p_now - make_interval(secs => elapsed_seconds), p_now), p_now), p_now,
           reference, code, left(detail, 2000)
      FROM decided
  ), finished AS (
    DELETE FROM leasehold.outbox_pending p USING decided d WHERE p.intent_id = d.intent_id AND d.is_final
  ), moved AS (
    UPDATE leasehold.outbox_pending p
       SET attempt_count = d.attempt_no, last_state = d.state, due_at = d.next_due_at,
           reference = coalesce(d.reference, p.reference),
           first_tried_at = coalesce(p.first_tried_at, p.begun_at, p_now),
           begun_at = NULL, begun_epoch = NULL, claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           last_modified_at = greatest(p_now, p.last_modified_at + interval '1 microsecond')
      FROM decided d WHERE p.intent_id = d.intent_id AND NOT d.is_final
  )
  SELECT d.intent_id, d.attempt_no, d.final_state, d.final_reason, CASE WHEN NOT d.is_final THEN d.next_due_at END
    FROM decided d;
END
$$;
REVOKE ALL ON FUNCTION leasehold.append_attempts(leasehold.outcome[], timestamptz) FROM PUBLIC;
