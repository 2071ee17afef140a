-- Say whether an intent with an idempotency key has the same content as p_intent, which is given as in
-- enqueue_intents (payload, or body with content_type). It explains a conflict of keys. False if the intent
-- does not exist.
-- Locks nothing.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.has_content(p_intent_id uuid, p_intent jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF p_intent_id IS NULL THEN
    RAISE EXCEPTION 'p_intent_id is NULL' USING ERRCODE = '22023';
  ELSIF p_intent IS NULL OR jsonb_typeof(p_intent) <> 'object' THEN
    RAISE EXCEPTION 'p_intent is %, but must be a JSON object', coalesce(jsonb_typeof(p_intent), 'NULL')
      USING ERRCODE = '22023';
  END IF;
  RETURN coalesce((
    SELECT payload_hash = leasehold.content_hash(
             nullif(p_intent -> 'payload', 'null'), p_intent ->> 'content_type', decode(p_intent ->> 'body', 'base64'))
      FROM leasehold.intents WHERE intent_id = p_intent_id), false);
END
$$;
REVOKE ALL ON FUNCTION leasehold.has_content(uuid, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.has_content(uuid, jsonb)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
