-- The heartbeat: extend every claim of a worker that it still holds, and say which are lost.
-- Locks: the worker's pending rows, by id; then looks at the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_outbox_leases(
  p_worker_id text, p_lease_tokens uuid[], p_lease_seconds double precision
) RETURNS TABLE (lease_token uuid, verdict text, lease_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  PERFORM leasehold.require_list('p_lease_tokens', p_lease_tokens, 10000);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 3600);

  PERFORM FROM leasehold.outbox_pending p
    WHERE p.claimed_by = p_worker_id AND p.lease_token = ANY (p_lease_tokens)
    ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH renewed AS (
    UPDATE leasehold.outbox_pending p
       SET lease_expires_at = v_now + make_interval(secs => p_lease_seconds),
           last_modified_at = greatest(v_now, p.last_modified_at + interval '1 microsecond')
     WHERE p.claimed_by = p_worker_id AND p.lease_token = ANY (p_lease_tokens) AND p.lease_expires_at > v_now
    RETURNING p.lease_token, p.lease_expires_at
  )
  SELECT asked.lease_token, CASE WHEN r.lease_token IS NULL THEN 'lease_lost' ELSE 'renewed' END, r.lease_expires_at
    FROM unnest(p_lease_tokens) AS asked (lease_token)
    LEFT JOIN renewed r ON r.lease_token = asked.lease_token;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], double precision) TO leasehold_executor;
