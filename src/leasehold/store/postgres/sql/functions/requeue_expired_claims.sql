-- Make claims of these targets that expired before a call was begun claimable again, each with the
-- ZOMBIE_REQUEUE row of the lease that it ends (or the doubt that was there before, see expired_claim_outcome).
-- Rows with no attempt left, or past their deadline, are left to repair, which finishes them.
-- A row that cannot be requeued keeps nobody from claiming: all expired ones are then left to repair,
-- which goes row by row.
-- Locks: the expired rows, SKIP LOCKED: never waits. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.requeue_expired_claims(
  p_batch_size integer, p_targets text[], p_now timestamptz
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_outcomes leasehold.outcome[];
BEGIN
  WITH expired AS MATERIALIZED (
    SELECT stale.*
      FROM unnest(p_targets) AS asked (target)
     CROSS JOIN LATERAL (
       SELECT p.* FROM leasehold.outbox_pending p
         JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
        WHERE p.target = asked.target AND p.claimed_by IS NOT NULL AND p.lease_expires_at <= p_now
          AND p.begun_at IS NULL AND p.attempt_count + 1 < c.attempts_max
          AND coalesce(p.deadline_at > p_now, true)
        ORDER BY p.lease_expires_at
        LIMIT p_batch_size
          FOR UPDATE OF p SKIP LOCKED) AS stale
     LIMIT p_batch_size
  )
  SELECT array_agg(leasehold.expired_claim_outcome(expired, 0)) INTO v_outcomes FROM expired;
  IF v_outcomes IS NOT NULL THEN
    BEGIN
      PERFORM leasehold.append_attempts(v_outcomes, p_now, 'none');
    EXCEPTION WHEN others THEN
      RAISE WARNING 'expired claims are left to repair (%): %', SQLSTATE, SQLERRM;
    END;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.requeue_expired_claims(integer, text[], timestamptz) FROM PUBLIC;
