-- Give claims back without an attempt. Nothing was called, so nothing goes on the ledger. For a worker that shuts
-- down, and for one that asked about an intent in doubt and must ask again later.
-- p_unsent are intents whose calls were begun, but for which nothing was sent: they are released too. An intent without an
-- attempt on the ledger was never tried: its first_tried_at goes, so that no key window has begun.
-- One verdict per intent: released; begun (a call may be in flight, only its result ends the claim); lease_lost.
-- An intent is due again after the delay, behind those that are due already: workers do not look at due times that they
-- have passed.
-- Locks: the pending rows, by id; then it reads the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_outbox_claims(
  p_worker_id text, p_intent_ids uuid[], p_lease_tokens uuid[], p_delay_seconds double precision,
  p_unsent uuid[] DEFAULT '{}'
) RETURNS TABLE (intent_id uuid, verdict text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_claims(p_worker_id, p_intent_ids, p_lease_tokens);
  PERFORM leasehold.require_list('p_unsent', p_unsent, 10000);
  PERFORM leasehold.require_between('p_delay_seconds', p_delay_seconds, 0, 2592000);

  PERFORM FROM leasehold.outbox_pending p
    WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT p.intent_id, p.begun_at IS NOT NULL AND p.intent_id <> ALL (p_unsent) AS is_begun
      FROM unnest(p_intent_ids, p_lease_tokens) AS asked (intent_id, lease_token)
      JOIN leasehold.outbox_pending p ON p.intent_id = asked.intent_id
     WHERE p.lease_token = asked.lease_token AND p.claimed_by = p_worker_id AND p.lease_expires_at > v_now
  ), released AS (
    UPDATE leasehold.outbox_pending p
       SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL, lease_seconds = NULL,
           begun_at = NULL, first_tried_at = CASE WHEN p.attempt_count > 0 THEN p.first_tried_at END,
           due_at = v_now + make_interval(secs => p_delay_seconds)
      FROM held WHERE p.intent_id = held.intent_id AND NOT held.is_begun
  )
  SELECT asked.intent_id,
         CASE WHEN h.intent_id IS NULL THEN 'lease_lost' WHEN h.is_begun THEN 'begun' ELSE 'released' END
    FROM unnest(p_intent_ids) AS asked (intent_id)
    LEFT JOIN held h ON h.intent_id = asked.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_outbox_claims(text, uuid[], uuid[], double precision, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_outbox_claims(text, uuid[], uuid[], double precision, uuid[]) TO leasehold_executor;
