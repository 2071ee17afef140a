-- Make "about to call" durable for claimed items. The caller may call only for intents with the verdict begun. After
-- that, a claim that ends without a result is in doubt.
-- Verdicts: begun, lease_lost, ceiling_reached, already_terminal, not_found. To begin again under the same claim is
-- allowed, because the first answer may have been lost.
-- Locks: the pending rows, by id; then it reads the clock. Raises: P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.begin_outbox_attempts(
  p_worker_id text, p_intent_ids uuid[], p_lease_tokens uuid[]
) RETURNS TABLE (intent_id uuid, verdict text, begun_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_claims(p_worker_id, p_intent_ids, p_lease_tokens);
  PERFORM leasehold.require_generation();

  PERFORM FROM leasehold.outbox_pending p
    WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH judged AS MATERIALIZED (
    SELECT asked.intent_id, CASE
             WHEN p.intent_id IS NULL THEN leasehold.missing_verdict(asked.intent_id)
             WHEN p.claimed_by IS DISTINCT FROM p_worker_id OR p.lease_token IS DISTINCT FROM asked.lease_token
                  OR p.lease_expires_at <= v_now THEN 'lease_lost'
             WHEN p.attempt_count >= 20 THEN 'ceiling_reached'
             ELSE 'begun' END AS verdict
      FROM unnest(p_intent_ids, p_lease_tokens) AS asked (intent_id, lease_token)
      LEFT JOIN leasehold.outbox_pending p ON p.intent_id = asked.intent_id
  ), begun AS (
    UPDATE leasehold.outbox_pending p
       SET begun_at = coalesce(p.begun_at, v_now)
      FROM judged WHERE p.intent_id = judged.intent_id AND judged.verdict = 'begun'
    RETURNING p.intent_id, p.begun_at
  )
  SELECT judged.intent_id, judged.verdict, begun.begun_at
    FROM judged LEFT JOIN begun ON begun.intent_id = judged.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_outbox_attempts(text, uuid[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_outbox_attempts(text, uuid[], uuid[]) TO leasehold_executor;
