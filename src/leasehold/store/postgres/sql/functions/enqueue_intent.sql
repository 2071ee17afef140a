-- Accept one intent and return its id. The same key with the same payload and stream returns the same id
-- again. It raises an error where enqueue_intents returns a verdict, which suits plain SQL in the caller's own transaction.
-- Locks: as enqueue_intents.
-- Raises: P7005 if the key was used for another intent, P7007 if the payload's text or the body has more than 1 MiB,
-- 22023 if the intent cannot be accepted for another reason.
CREATE OR REPLACE FUNCTION leasehold.enqueue_intent(
  p_target text, p_payload jsonb, p_idempotency_key text DEFAULT NULL, p_options jsonb DEFAULT '{}'
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_new leasehold.new_intent;
  v_result record;
BEGIN
  IF p_options IS NULL OR jsonb_typeof(p_options) <> 'object' THEN
    RAISE EXCEPTION 'p_options is %, but must be a JSON object', coalesce(jsonb_typeof(p_options), 'NULL')
      USING ERRCODE = '22023';
  ELSIF p_options <> '{}' THEN
    v_new := jsonb_populate_record(v_new, p_options);
  END IF;
  v_new.target := coalesce(p_target, v_new.target);
  IF p_payload IS NOT NULL THEN
    v_new.payload := nullif(p_payload, 'null');
  END IF;
  v_new.idempotency_key := coalesce(p_idempotency_key, v_new.idempotency_key);
  v_result := leasehold.enqueue_one(v_new);
  IF v_result.verdict IS NULL THEN
    SELECT * INTO v_result FROM leasehold.enqueue_intents(jsonb_build_array(to_jsonb(v_new)));
  END IF;
  IF v_result.verdict = 'conflict' THEN
    RAISE EXCEPTION 'idempotency key % of target % was already used for intent % with another %',
      quote_literal(v_new.idempotency_key), quote_literal(v_new.target), v_result.intent_id,
      coalesce(v_result.problem, 'payload')
      USING ERRCODE = 'P7005', HINT = 'Use a new key for a new intent.', DETAIL = v_result.intent_id::text;
  ELSIF v_result.verdict = 'too_large' THEN
    RAISE EXCEPTION 'the intent is too large: %', v_result.problem USING ERRCODE = 'P7007';
  ELSIF v_result.verdict NOT IN ('accepted', 'duplicate') THEN
    RAISE EXCEPTION 'the intent was refused: %', v_result.problem USING ERRCODE = '22023';
  END IF;
  RETURN v_result.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_intent(text, jsonb, text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.enqueue_intent(text, jsonb, text, jsonb) TO leasehold_ingest;
