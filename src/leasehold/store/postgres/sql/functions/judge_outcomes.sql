-- Decide what each outcome means. Returns one judgement for each of p_outcomes, in their order.
-- Refusals are lease_lost, superseded, ceiling_reached, already_terminal and not_found.
--   DISPATCHED, FAILED, CANCELLED  the intent ends
--   RETRYABLE, ZOMBIE_REQUEUE      due again after retry_after_seconds; exhausted when the contract's attempts
--                                  are used up (max_attempts, one_shot) or the deadline would pass
--   IN_DOUBT                       keyed, fenced: try again; lookup, and keyed after its key window if the
--                                  gateway can look up: ask after the quarantine; otherwise: held
--   SUBMITTED                      ask after retry_after_seconds. Asking is not trying: if it was SUBMITTED before and
--                                  no call was made, nothing is written. After confirm_within_seconds: IN_DOUBT
--   DEFERRED                       no call was made, a call had certainly no effect and says nothing about the intent, or a
--                                  lookup had no news: look again after retry_after_seconds, nothing is written
-- At the ceiling of 20 attempts, an intent that is in doubt or unconfirmed is held for a person.
-- attempt_no comes from the ledger. attempt_count is only a cache of it.
-- Locks nothing: the callers hold the pending rows and have set the search_path.
-- Raises: P7003 if a result reports a call that should have been begun first.
CREATE OR REPLACE FUNCTION leasehold.judge_outcomes(
  p_outcomes leasehold.outcome[], p_now timestamptz, p_fence text
) RETURNS leasehold.judgement[]
-- Its callers have switched hash joins off. Here each outcome would then be compared with every row.
LANGUAGE plpgsql SET enable_hashjoin = on AS $$
DECLARE
  v_ids uuid[] := ARRAY(SELECT o.intent_id FROM unnest(p_outcomes) AS o ORDER BY o.intent_id);
  v_judgements leasehold.judgement[];
BEGIN
  WITH written AS MATERIALIZED (
    -- The bounds add nothing to the list, but they exclude the partitions of other months.
    SELECT a.intent_id, max(a.attempt_no) AS attempts,
           max(a.finished_at) FILTER (WHERE a.state = 'SUBMITTED') AS submitted_at
      FROM leasehold.outbox_attempts a
     WHERE a.intent_id = ANY (v_ids) AND a.intent_id BETWEEN v_ids[1] AND v_ids[cardinality(v_ids)]
     GROUP BY a.intent_id
  ), waiting AS MATERIALIZED (
    -- One scan of the index takes half the time of one search per intent.
    SELECT ctid AS place, intent_id, scope, target, contract_version, lease_name, deadline_at, attempt_count,
           last_state, first_tried_at, begun_at, reference, claimed_by, lease_token, lease_expires_at
      FROM leasehold.outbox_pending WHERE intent_id = ANY (v_ids)
  ), judged AS (
    SELECT o.ordinality, p.place, p.begun_at, p.reference AS known_reference,
           ledger.attempt_no AS new_attempt_no, written_as.state AS new_state, written_as.reason AS new_reason,
           CASE WHEN p.intent_id IS NULL THEN leasehold.missing_verdict(o.intent_id)
                WHEN p_fence = 'claim' AND (p.claimed_by IS DISTINCT FROM o.holder
                     OR p.lease_token IS DISTINCT FROM o.lease_token OR p.lease_expires_at <= p_now) THEN 'lease_lost'
                WHEN p_fence = 'lease' AND p.lease_name IS DISTINCT FROM o.lease_name THEN 'not_found'
                -- Somebody has decided about the intent since its holder read it: an operator, while it was asked about.
                WHEN o.attempt_no <> ledger.attempt_no THEN 'superseded'
                WHEN p_fence <> 'none' AND p.attempt_count >= 20 AND o.state = 'RETRYABLE' THEN 'ceiling_reached'
                WHEN p_fence <> 'none'
                     AND leasehold.is_unbegun_call(p.begun_at, p.last_state, p.scope, c.guarantee, o.state)
                  THEN leasehold.refuse_unbegun(o.intent_id) END AS refusal,
           next_due.at AS next_due_at
      FROM unnest(p_outcomes) WITH ORDINALITY AS o
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
       WHEN o.state NOT IN ('RETRYABLE', 'ZOMBIE_REQUEUE') THEN NULL
       WHEN retry.is_last THEN CASE c.retry_policy WHEN 'one_shot' THEN 'one_shot' ELSE 'max_attempts' END
       WHEN retry.at >= p.deadline_at THEN 'deadline_exceeded' END AS by) AS exhausted
     CROSS JOIN LATERAL (
       SELECT p.last_state IS NOT DISTINCT FROM 'SUBMITTED' AND p.begun_at IS NULL
                AND (o.state = 'DEFERRED' OR p_fence <> 'none' AND o.state = 'SUBMITTED' AND c.can_look_up) AS is_unconfirmed,
              coalesce(CASE WHEN p.last_state = 'SUBMITTED' THEN written.submitted_at END, p_now)
                + make_interval(secs => c.confirm_within_seconds) AS ends_at) AS confirmation
     CROSS JOIN LATERAL (
       SELECT CASE WHEN exhausted.by IS NOT NULL THEN 'FAILED'
                   WHEN confirmation.is_unconfirmed AND confirmation.ends_at <= p_now THEN 'IN_DOUBT'
                   WHEN confirmation.is_unconfirmed OR o.state = 'DEFERRED' THEN NULL
                   ELSE o.state END AS state,
              CASE WHEN exhausted.by IS NOT NULL THEN exhausted.by
                   WHEN confirmation.is_unconfirmed AND confirmation.ends_at <= p_now THEN 'unconfirmed'
                   ELSE o.reason END AS reason) AS written_as
     CROSS JOIN LATERAL (SELECT CASE
       WHEN written_as.state IN ('DISPATCHED', 'FAILED', 'CANCELLED') THEN NULL
       WHEN written_as.state IS NULL AND NOT confirmation.is_unconfirmed THEN retry.at
       WHEN written_as.state IS NULL THEN least(retry.at, confirmation.ends_at)
       WHEN written_as.state NOT IN ('IN_DOUBT', 'SUBMITTED') THEN retry.at
       WHEN ledger.attempt_no >= 20 THEN 'infinity'
       WHEN written_as.state = 'SUBMITTED' THEN least(retry.at, p_now + make_interval(secs => c.confirm_within_seconds))
       WHEN c.guarantee = 'blind' THEN 'infinity'
       WHEN c.guarantee = 'lookup' OR c.guarantee = 'keyed' AND retry.is_key_outlived
         THEN CASE WHEN c.can_look_up THEN retry.quarantine_ends_at ELSE 'infinity' END
       WHEN retry.is_last THEN 'infinity'
       ELSE retry.at END AS at) AS next_due
  )
  SELECT array_agg(ROW (j.place, j.begun_at, j.known_reference, j.refusal, j.new_attempt_no, j.new_state, j.new_reason,
                        j.next_due_at)::leasehold.judgement ORDER BY j.ordinality)
    INTO v_judgements FROM judged j;
  RETURN v_judgements;
END
$$;
REVOKE ALL ON FUNCTION leasehold.judge_outcomes(leasehold.outcome[], timestamptz, text) FROM PUBLIC;
