-- Check a row of intents: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK. PostgreSQL parses a CHECK for each statement, but a function once per session;
-- see docs/decisions/0011. As in a CHECK, NULL breaks no rule. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.check_intent_row(
  p_payload jsonb, p_body bytea, p_content_type text, p_idempotency_key text, p_stream text, p_payload_hash bytea
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN num_nonnulls(p_payload, p_body) <> 1 THEN 'intents_payload_or_body'
    WHEN (p_body IS NULL) <> (p_content_type IS NULL) THEN 'intents_body_names_its_type'
    WHEN length(p_idempotency_key) NOT BETWEEN 1 AND 255 THEN 'intents_key_bounded'
    WHEN length(p_stream) NOT BETWEEN 1 AND 255 THEN 'intents_stream_bounded'
    WHEN octet_length(p_body) > 1048576 THEN 'intents_body_bounded'
    WHEN octet_length(p_payload_hash) <> 32 THEN 'intents_hash_is_sha256'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('intents', v_broken);
  END IF;
  RETURN true;
END
$$;
REVOKE ALL ON FUNCTION leasehold.check_intent_row(jsonb, bytea, text, text, text, bytea) FROM PUBLIC;
