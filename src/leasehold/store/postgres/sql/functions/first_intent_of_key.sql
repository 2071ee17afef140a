-- The intent that a key stands for. Volatile on purpose: it looks with a snapshot of its own, so it sees
-- the intent of a session that was waited for, and of an earlier entry of the same batch. Locks nothing.
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
