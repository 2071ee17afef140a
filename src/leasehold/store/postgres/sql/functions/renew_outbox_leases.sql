-- The heartbeat: extend the claims that a worker still holds, and return which ones are lost.
-- Verdicts: renewed, lease_lost, locked (another transaction has the row: the claim lasts as long as before; ask again).
-- Locks: the pending rows, by id, SKIP LOCKED, so that one row that is locked for long costs no other claim; then it reads
-- the clock. Raises: P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_outbox_leases(
  p_worker_id text, p_intent_ids uuid[], p_lease_tokens uuid[], p_lease_seconds double precision
) RETURNS TABLE (intent_id uuid, verdict text, lease_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_ids uuid[];
  v_tokens uuid[];
BEGIN
  PERFORM leasehold.require_claims(p_worker_id, p_intent_ids, p_lease_tokens);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 3600);
  PERFORM leasehold.require_generation();

  SELECT array_agg(locked.intent_id), array_agg(locked.lease_token) INTO v_ids, v_tokens
    FROM (SELECT p.intent_id, asked.lease_token
            FROM unnest(p_intent_ids, p_lease_tokens) AS asked (intent_id, lease_token)
            JOIN leasehold.outbox_pending p ON p.intent_id = asked.intent_id
           ORDER BY p.intent_id
             FOR NO KEY UPDATE OF p SKIP LOCKED) AS locked;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH renewed AS (
    UPDATE leasehold.outbox_pending p
       SET lease_expires_at = v_now + make_interval(secs => p_lease_seconds), lease_seconds = p_lease_seconds
      FROM unnest(v_ids, v_tokens) AS asked (intent_id, lease_token)
     WHERE p.intent_id = asked.intent_id AND p.lease_token = asked.lease_token AND p.claimed_by = p_worker_id
       AND p.lease_expires_at > v_now
    RETURNING p.intent_id, p.lease_expires_at
  )
  SELECT asked.intent_id,
         CASE WHEN r.intent_id IS NOT NULL THEN 'renewed'
              WHEN EXISTS (SELECT FROM leasehold.outbox_pending p
                            WHERE p.intent_id = asked.intent_id AND p.lease_token = asked.lease_token
                              AND p.claimed_by = p_worker_id AND p.lease_expires_at > v_now) THEN 'locked'
              ELSE 'lease_lost' END,
         r.lease_expires_at
    FROM unnest(p_intent_ids, p_lease_tokens) AS asked (intent_id, lease_token)
    LEFT JOIN renewed r ON r.intent_id = asked.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], uuid[], double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_outbox_leases(text, uuid[], uuid[], double precision) TO leasehold_executor;
