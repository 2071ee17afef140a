-- Give claims back without a try: nothing was called, so nothing goes on the ledger. For a worker that
-- shuts down, and for one that asked about an intent in doubt and must ask again later.
-- One verdict per token: released, begun (a call may be under way: only its result ends it), lease_lost.
-- Locks: the worker's pending rows, by id; then looks at the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_outbox_claims(
  p_worker_id text, p_lease_tokens uuid[], p_delay_seconds double precision
) RETURNS TABLE (lease_token uuid, verdict text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  PERFORM leasehold.require_list('p_lease_tokens', p_lease_tokens, 10000);
  PERFORM leasehold.require_between('p_delay_seconds', p_delay_seconds, 0, 2592000);

  PERFORM FROM leasehold.outbox_pending p
    WHERE p.claimed_by = p_worker_id AND p.lease_token = ANY (p_lease_tokens)
    ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT p.intent_id, p.lease_token, p.begun_at IS NOT NULL AS is_begun
      FROM leasehold.outbox_pending p
     WHERE p.claimed_by = p_worker_id AND p.lease_token = ANY (p_lease_tokens) AND p.lease_expires_at > v_now
  ), released AS (
    UPDATE leasehold.outbox_pending p
       SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           due_at = CASE WHEN p_delay_seconds = 0 THEN p.due_at
                         ELSE v_now + make_interval(secs => p_delay_seconds) END,
           last_modified_at = greatest(v_now, p.last_modified_at + interval '1 microsecond')
      FROM held WHERE p.intent_id = held.intent_id AND NOT held.is_begun
  )
  SELECT asked.lease_token,
         CASE WHEN h.lease_token IS NULL THEN 'lease_lost' WHEN h.is_begun THEN 'begun' ELSE 'released' END
    FROM unnest(p_lease_tokens) AS asked (lease_token)
    LEFT JOIN held h ON h.lease_token = asked.lease_token;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_outbox_claims(text, uuid[], double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_outbox_claims(text, uuid[], double precision) TO leasehold_executor;
