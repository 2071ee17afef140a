-- Move an expired claim that could not be repaired out of its neighbours' way: remove it when the
-- ledger says that the intent is finished, else look at it again in a minute; a warning either way. Its
-- token changes, for the silent holder's lease must not come back to life.
-- Locks: the pending row, already held by the caller. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.defer_repair(
  p_pending leasehold.outbox_pending, p_sqlstate text, p_message text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF leasehold.missing_verdict(p_pending.intent_id) = 'already_terminal' THEN
    RAISE WARNING 'intent % was still pending although it is finished; its pending row is removed',
      p_pending.intent_id;
    DELETE FROM leasehold.outbox_pending WHERE intent_id = p_pending.intent_id;
  ELSE
    RAISE WARNING 'intent % could not be repaired (%): %', p_pending.intent_id, p_sqlstate, p_message;
    UPDATE leasehold.outbox_pending
       SET lease_token = gen_random_uuid(), lease_expires_at = clock_timestamp() + interval '1 minute'
     WHERE intent_id = p_pending.intent_id;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.defer_repair(leasehold.outbox_pending, text, text) FROM PUBLIC;
