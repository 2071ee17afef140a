-- The heartbeat: extend the claims that a worker still holds, and return which ones are lost.
-- Locks: the pending rows, by id; then it reads the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_outbox_leases(
  p_worker_id text, p_intent_ids uuid[], p_lease_tokens uuid[], p_lease_seconds double precision
) RETURNS TABLE (intent_id uuid, verdict text, lease_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_claims(p_worker_id, p_intent_ids, p_lease_tokens);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 3600);

  PERFORM FROM leasehold.outbox_pending p
    WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH renewed AS (
    UPDATE leasehold.outbox_pending p
       SET lease_expires_at = v_now + make_interval(secs => p_lease_seconds), lease_seconds = p_lease_seconds
      FROM unnest(p_intent_ids, p_lease_tokens) AS asked (intent_id, lease_token)
     WHERE p.intent_id = asked.intent_id AND p.lease_token = asked.lease_token AND p.claimed_by = p_worker_id
       AND p.lease_expires_at > v_now
    RETURNING p.intent_id, p.lease_expires_at
  )
  SELECT asked.intent_id, CASE WHEN r.intent_id IS NULL THEN 'lease_lost' ELSE 'renewed' END, r.lease_expires_at
    FROM unnest(p_intent_ids) AS asked (intent_id)
    LEFT JOIN renewed r ON r.intent_id = asked.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], uuid[], double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], uuid[], double precision) TO leasehold_executor;
