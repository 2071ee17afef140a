-- Write the ledger rows of expired claims and reschedule or delete their pending rows. Returns what was written, with
-- the holder that is replaced. Locks nothing: the caller holds the pending rows. Raises: as append_attempts.
CREATE OR REPLACE FUNCTION leasehold.record_expired_claims(p_expired leasehold.outbox_pending[], p_now timestamptz)
RETURNS TABLE (
  intent_id uuid, target text, attempt_no integer, state text, reason text, replaced_holder text,
  stale_seconds double precision, trace_context text)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT a.intent_id, e.target, a.attempt_no, a.state, a.reason, e.claimed_by,
         extract(epoch FROM p_now - e.lease_expires_at)::double precision, i.trace_context
    FROM leasehold.append_attempts(
           ARRAY(SELECT leasehold.expired_claim_outcome(e) FROM unnest(p_expired) AS e), p_now, 'none') AS a
    JOIN unnest(p_expired) AS e ON e.intent_id = a.intent_id
    LEFT JOIN leasehold.intents i ON i.intent_id = a.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_expired_claims(leasehold.outbox_pending[], timestamptz) FROM PUBLIC;
