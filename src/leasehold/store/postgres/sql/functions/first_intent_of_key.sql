-- Return the intent that was accepted under a key. The function is VOLATILE on purpose: it then reads with a
-- new snapshot. So it sees an intent that another session committed while the caller waited for it, and an
-- earlier entry of the same batch. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.first_intent_of_key(
  p_target text, p_idempotency_key text, p_is_key_of_all_targets boolean
) RETURNS leasehold.intents
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_first leasehold.intents;
BEGIN
  SELECT * INTO v_first FROM leasehold.intents
   WHERE target = p_target AND idempotency_key = p_idempotency_key;
  IF NOT FOUND AND p_is_key_of_all_targets THEN
    SELECT * INTO v_first FROM leasehold.intents
     WHERE idempotency_key = p_idempotency_key AND is_key_of_all_targets;
  END IF;
  RETURN v_first;
END
$$;
REVOKE ALL ON FUNCTION leasehold.first_intent_of_key(text, text, boolean) FROM PUBLIC;
