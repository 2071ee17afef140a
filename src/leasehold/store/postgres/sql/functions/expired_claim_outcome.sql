-- Return the ledger row of an expired claim, under the name of its holder: IN_DOUBT if a call had begun, else
-- ZOMBIE_REQUEUE. If the intent was in doubt or awaited confirmation, the holder had claimed it to ask about it. That
-- state stays, or the next holder would send again. The intent is due in one second, whoever ends the claim: the reaper
-- or the next claim. So work that kills its workers is not taken by the next one in the same moment. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.expired_claim_outcome(p_pending leasehold.outbox_pending)
RETURNS leasehold.outcome
LANGUAGE sql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT leasehold.new_outcome(
    p_pending.intent_id,
    CASE WHEN p_pending.begun_at IS NOT NULL THEN 'IN_DOUBT'
         WHEN p_pending.last_state IN ('IN_DOUBT', 'SUBMITTED') THEN p_pending.last_state
         ELSE 'ZOMBIE_REQUEUE' END,
    p_pending.claimed_by, 'lease_expired', format('the lease expired at %s', p_pending.lease_expires_at),
    p_lease_token => p_pending.lease_token, p_retry_after_seconds => 1)
$$;
REVOKE ALL ON FUNCTION leasehold.expired_claim_outcome(leasehold.outbox_pending) FROM PUBLIC;
