-- The heart of the state machine: judge each outcome against its fence, append exactly one ledger row for
-- each that is applied, and move its pending row. Callers have locked the pending rows and then read p_now.
-- p_fence says what an outcome must match to be applied: claim (worker and token of an unexpired claim),
-- lease (the name of the lease, which the caller holds), or none (repair and operators, who hold the row).
-- Verdicts: applied, lease_lost, ceiling_reached, already_terminal, not_found.
--   terminal state              the pending row goes
--   RETRYABLE, ZOMBIE_REQUEUE   due again after retry_after_seconds; FAILED instead when the contract's
--                               attempts are spent (max_attempts, one_shot) or the deadline would pass
--   IN_DOUBT                    by guarantee: keyed, fenced: try again; lookup, and keyed past its window
--                               if it can be asked: ask after the quarantine; all others: held
--   SUBMITTED                   asked about after retry_after_seconds
-- What is still in doubt or unconfirmed at the ceiling of 20 is held: it must end, but nobody may guess how.
-- attempt_no comes from the ledger, which is the truth; attempt_count is its cache.
-- Pending rows are found by their ids once and then by their places, which no one can change under the lock.
-- Locks: pending rows, already held by the caller. Raises: P7003 when a call is reported that was not begun.
CREATE OR REPLACE FUNCTION leasehold.append_attempts(
  p_outcomes leasehold.outcome[], p_now timestamptz, p_fence text
) RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[] := ARRAY(SELECT o.intent_id FROM unnest(p_outcomes) AS o ORDER BY o.intent_id);
BEGIN
  RETURN QUERY
  WITH written AS MATERIALIZED (
    -- The bounds say the same as the list, but by them the partitions of other months are left out.
    SELECT a.intent_id, max(a.attempt_no) AS attempts
      FROM leasehold.outbox_attempts a
     WHERE a.intent_id = ANY (v_ids) AND a.intent_id BETWEEN v_ids[1] AND v_ids[cardinality(v_ids)]
     GROUP BY a.intent_id
  ), waiting AS MATERIALIZED (
    -- In one walk of the index, which is half of what a search for each costs.
    SELECT ctid AS place, intent_id, scope, target, contract_version, lease_name, deadline_at, attempt_count,
           last_state, first_tried_at, begun_at, reference, claimed_by, lease_token, lease_expires_at
      FROM leasehold.outbox_pending WHERE intent_id = ANY (v_ids)
  ), decided AS MATERIALIZED (
    SELECT o.intent_id, o.holder, o.lease_token, o.lease_name, o.lease_epoch, o.code, o.detail,
           least(coalesce(p.begun_at, p_now - make_interval(secs => o.elapsed_seconds), p_now), p_now) AS started_at,
           p.place, coalesce(o.reference, p.reference) AS known_reference, judged.verdict,
           ledger.attempt_no, next_due.at AS next_due_at,
           coalesce(exhausted.by, o.reason) AS final_reason,
           CASE WHEN exhausted.by IS NULL THEN o.state ELSE 'FAILED' END AS final_state,
           exhausted.by IS NOT NULL OR o.state IN ('DISPATCHED', 'FAILED', 'CANCELLED') AS is_final
      FROM unnest(p_outcomes) AS o
      LEFT JOIN waiting p ON p.intent_id = o.intent_id
      LEFT JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
      LEFT JOIN written ON written.intent_id = o.intent_id
     CROSS JOIN LATERAL (SELECT coalesce(written.attempts, 0) + 1 AS attempt_no) AS ledger
     CROSS JOIN LATERAL (
       SELECT p_now + make_interval(secs => coalesce(o.retry_after_seconds, 0)) AS at,
              ledger.attempt_no >= c.attempts_max AS is_last,
              p_now + make_interval(secs => c.quarantine_seconds) AS quarantine_ends_at,
              p_now > p.first_tried_at + make_interval(secs => c.key_window_seconds) AS is_key_outlived) AS retry
     CROSS JOIN LATERAL (SELECT CASE
       WHEN p.intent_id IS NULL THEN leasehold.absence(o.intent_id)
       WHEN p_fence = 'claim' AND (p.claimed_by IS DISTINCT FROM o.holder
            OR p.lease_token IS DISTINCT FROM o.lease_token OR p.lease_expires_at <= p_now) THEN 'lease_lost'
       WHEN p_fence = 'lease' AND p.lease_name IS DISTINCT FROM o.lease_name THEN 'not_found'
       WHEN p_fence <> 'none' AND p.attempt_count >= 20 AND o.state = 'RETRYABLE' THEN 'ceiling_reached'
       WHEN p_fence <> 'none'
            AND leasehold.is_unbegun_call(p.begun_at, p.last_state, p.scope, c.guarantee, o.state)
         THEN leasehold.refuse_unbegun(o.intent_id)
       ELSE 'applied' END AS verdict) AS judged
     CROSS JOIN LATERAL (SELECT CASE
       WHEN o.state NOT IN ('RETRYABLE', 'ZOMBIE_REQUEUE') THEN NULL
       WHEN retry.is_last THEN CASE c.retry_policy WHEN 'one_shot' THEN 'one_shot' ELSE 'max_attempts' END
       WHEN retry.at >= p.deadline_at THEN 'deadline_exceeded' END AS by) AS exhausted
     CROSS JOIN LATERAL (SELECT CASE
       WHEN o.state NOT IN ('IN_DOUBT', 'SUBMITTED') THEN retry.at
       WHEN ledger.attempt_no >= 20 THEN 'infinity'
       WHEN o.state = 'SUBMITTED' THEN retry.at
       WHEN c.guarantee = 'blind' THEN 'infinity'
       WHEN c.guarantee = 'lookup' OR c.guarantee = 'keyed' AND retry.is_key_outlived
         THEN CASE WHEN c.can_look_up THEN retry.quarantine_ends_at ELSE 'infinity' END
       WHEN retry.is_last THEN 'infinity'
       ELSE retry.at END AS at) AS next_due
  ), appended AS (
    INSERT INTO leasehold.outbox_attempts (
      intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at,
      finished_at, reference, code, detail)
    SELECT intent_id, attempt_no, final_state, final_reason, holder, lease_token, lease_name, lease_epoch,
           started_at, p_now, known_reference, code, left(detail, 2000)
      FROM decided WHERE verdict = 'applied'
  ), finished AS (
    DELETE FROM leasehold.outbox_pending p
     WHERE p.ctid = ANY (ARRAY(SELECT d.place FROM decided d WHERE d.is_final AND d.verdict = 'applied'))
  ), moved AS (
    UPDATE leasehold.outbox_pending p
       SET attempt_count = d.attempt_no, last_state = d.final_state, due_at = d.next_due_at,
           reference = d.known_reference,
           first_tried_at = coalesce(p.first_tried_at, p.begun_at, p_now),
           begun_at = NULL, begun_epoch = NULL, claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           last_modified_at = greatest(p_now, p.last_modified_at + interval '1 microsecond')
      FROM decided d WHERE p.ctid = d.place AND NOT d.is_final AND d.verdict = 'applied'
  )
  SELECT d.intent_id, d.verdict, result.attempt_no, result.final_state, result.final_reason,
         CASE WHEN NOT result.is_final THEN result.next_due_at END
    FROM decided d
    LEFT JOIN LATERAL (SELECT d.attempt_no, d.final_state, d.final_reason, d.is_final, d.next_due_at) AS result
      ON d.verdict = 'applied';
END
$$;
REVOKE ALL ON FUNCTION leasehold.append_attempts(leasehold.outcome[], timestamptz, text) FROM PUBLIC;
