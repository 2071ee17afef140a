-- What the ledger says of a claim whose holder fell silent: IN_DOUBT when a call had begun, else
-- ZOMBIE_REQUEUE; in the name of the holder that is replaced. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.zombie_outcome(
  p_pending leasehold.outbox_pending, p_retry_after_seconds double precision
) RETURNS leasehold.outcome
LANGUAGE sql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT ROW (
    p_pending.intent_id,
    CASE WHEN p_pending.begun_at IS NULL THEN 'ZOMBIE_REQUEUE' ELSE 'IN_DOUBT' END,
    p_pending.claimed_by, 'lease_expired', p_pending.lease_token, NULL, NULL, NULL, NULL,
    format('the lease expired at %s', p_pending.lease_expires_at), p_retry_after_seconds, NULL
  )::leasehold.outcome
$$;
REVOKE ALL ON FUNCTION leasehold.zombie_outcome(leasehold.outbox_pending, double precision) FROM PUBLIC;
