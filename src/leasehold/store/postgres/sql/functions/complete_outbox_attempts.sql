-- Record what became of claimed items: a JSON array of {intent_id, lease_token, state, reason, code,
-- reference, detail, retry_after_seconds, elapsed_seconds}. One verdict per result: applied (with the
-- ledger row written), lease_lost, ceiling_reached, already_terminal, not_found; only applied results
-- write anything, exactly one ledger row each.
-- Locks: the pending rows, by id; then looks at the clock.
-- Raises: P7003 for a state that no executor may report, or for a call that had to be begun and was
-- not; 22023 for arguments out of bounds. Then nothing is written.
CREATE OR REPLACE FUNCTION leasehold.complete_outbox_attempts(p_worker_id text, p_results jsonb)
RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_outcomes leasehold.outcome[];
  v_ids uuid[];
  v_verdicts text[];
  v_applied leasehold.outcome[];
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  v_outcomes := leasehold.read_results(p_results, p_worker_id, NULL, NULL);
  v_ids := ARRAY(SELECT o.intent_id FROM unnest(v_outcomes) AS o);

  PERFORM FROM leasehold.outbox_pending p WHERE p.intent_id = ANY (v_ids) ORDER BY p.intent_id FOR UPDATE;
  v_now := clock_timestamp();

  SELECT array_agg(judged.intent_id), array_agg(judged.verdict),
         array_agg(judged.outcome) FILTER (WHERE judged.verdict = 'applied')
    INTO v_ids, v_verdicts, v_applied
    FROM (SELECT o.intent_id, o AS outcome, CASE
              WHEN p.intent_id IS NULL THEN leasehold.absence(o.intent_id)
              WHEN p.claimed_by IS DISTINCT FROM p_worker_id OR p.lease_token IS DISTINCT FROM o.lease_token
                   OR p.lease_expires_at <= v_now THEN 'lease_lost'
              WHEN o.state = 'RETRYABLE' AND p.attempt_count >= 20 THEN 'ceiling_reached'
              WHEN leasehold.is_unbegun_call(p, c.guarantee, o.state) THEN 'not_begun'
              ELSE 'applied' END AS verdict
            FROM unnest(v_outcomes) AS o
            LEFT JOIN leasehold.outbox_pending p ON p.intent_id = o.intent_id
            LEFT JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version) AS judged;
  PERFORM leasehold.refuse_unbegun(v_ids, v_verdicts);

  RETURN QUERY
  SELECT given.intent_id, given.verdict, a.attempt_no, a.state, a.reason, a.due_at
    FROM unnest(v_ids, v_verdicts) AS given (intent_id, verdict)
    LEFT JOIN leasehold.append_attempts(v_applied, v_now) AS a ON a.intent_id = given.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.complete_outbox_attempts(text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.complete_outbox_attempts(text, jsonb) TO leasehold_executor;
