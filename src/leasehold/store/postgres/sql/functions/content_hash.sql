-- Return the SHA-256 of the content of an intent in its normal form: the jsonb text, or the content type and
-- the body. White space and the order of JSON keys make no difference. A zero byte separates content type and
-- body. JSON text has no zero byte, so a body never has the hash of a payload.
-- Locks nothing. The function has no SET clause, so PostgreSQL can inline it into the caller's statement.
CREATE OR REPLACE FUNCTION leasehold.content_hash(p_payload_text text, p_content_type text, p_body bytea) RETURNS bytea
LANGUAGE sql STABLE AS $$
  SELECT sha256(coalesce(
    convert_to(p_payload_text, 'UTF8'), convert_to(p_content_type, 'UTF8') || '\x00'::bytea || p_body))
$$;
REVOKE ALL ON FUNCTION leasehold.content_hash(text, text, bytea) FROM PUBLIC;
