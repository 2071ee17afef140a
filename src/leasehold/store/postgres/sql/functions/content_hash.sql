-- What an intent carries, in 32 bytes: SHA-256 of the normal form, so that neither spaces nor the order of
-- keys make a difference. No JSON text has a zero byte, so a body never stands for a payload. Locks nothing.
-- Without settings of its own, so that its text is planned as part of the caller's statement.
CREATE OR REPLACE FUNCTION leasehold.content_hash(p_payload jsonb, p_content_type text, p_body bytea) RETURNS bytea
LANGUAGE sql STABLE AS $$
  SELECT sha256(coalesce(
    convert_to(p_payload::text, 'UTF8'), convert_to(p_content_type, 'UTF8') || '\x00'::bytea || p_body))
$$;
REVOKE ALL ON FUNCTION leasehold.content_hash(jsonb, text, bytea) FROM PUBLIC;
