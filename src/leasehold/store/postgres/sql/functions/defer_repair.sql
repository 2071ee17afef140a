-- Set an expired claim aside that could not be repaired, so that it does not block the repair of other claims.
-- If the ledger says that the intent is finished, the pending row is deleted. Otherwise repair tries again in a
-- minute, and the claim gets a new token, so that its former holder cannot renew it. Both cases raise a
-- WARNING.
-- Locks nothing: the caller holds the pending row.
CREATE OR REPLACE FUNCTION leasehold.defer_repair(
  p_pending leasehold.outbox_pending, p_sqlstate text, p_message text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF leasehold.missing_verdict(p_pending.intent_id) = 'already_terminal' THEN
    RAISE WARNING 'intent % is finished but still had a pending row; the row is deleted',
      p_pending.intent_id;
    DELETE FROM leasehold.outbox_pending WHERE intent_id = p_pending.intent_id;
  ELSE
    RAISE WARNING 'intent % could not be repaired (%): %', p_pending.intent_id, p_sqlstate, p_message;
    UPDATE leasehold.outbox_pending
       SET lease_token = gen_random_uuid(), lease_expires_at = clock_timestamp() + interval '1 minute',
           lease_seconds = 60
     WHERE intent_id = p_pending.intent_id;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.defer_repair(leasehold.outbox_pending, text, text) FROM PUBLIC;
