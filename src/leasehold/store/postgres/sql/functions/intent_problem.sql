-- Return why a new intent cannot be accepted: unknown_target, too_large or a sentence; NULL if it can be accepted. p_body
-- is the decoded body; p_content_bytes is the size of the payload's text or of the body. p_first_due_at and p_last_at come from intent_due_at and intent_deadline_at.
-- The rules and their words are those of domain/intent_rules.py. Locks nothing. The function has no SET clause, so PostgreSQL can inline it into the caller's statement.
CREATE OR REPLACE FUNCTION leasehold.intent_problem(
  p_target text, p_payload jsonb, p_body bytea, p_content_bytes integer, p_content_type text, p_idempotency_key text, p_key_scope text,
  p_stream text, p_priority smallint, p_due_at timestamptz, p_delay_seconds double precision,
  p_deadline_at timestamptz, p_deadline_seconds double precision, p_metadata jsonb, p_trace_context text,
  p_contract_version integer, p_scope text, p_first_due_at timestamptz, p_last_at timestamptz, p_now timestamptz
) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_target IS NULL THEN 'target is required'
    WHEN length(p_target) NOT BETWEEN 1 AND 64 OR p_target ~ '[[:cntrl:]]'
      THEN 'target must be 1 to 64 characters without control characters'
    WHEN p_contract_version IS NULL THEN 'unknown_target'
    WHEN num_nonnulls(p_payload, p_body) <> 1 THEN 'payload must be given (any JSON but null) if body is not, and only then'
    WHEN (p_body IS NULL) <> (p_content_type IS NULL) THEN 'content_type must be given with body, and only with body'
    WHEN p_content_bytes > 1048576 THEN 'too_large'
    WHEN length(p_idempotency_key) NOT BETWEEN 1 AND 255 OR p_idempotency_key ~ '[[:cntrl:]]'
      THEN 'idempotency_key must be 1 to 255 characters without control characters'
    WHEN p_key_scope NOT IN ('target', 'all') THEN 'key_scope must be target or all'
    WHEN length(p_content_type) NOT BETWEEN 1 AND 255 OR p_content_type ~ '[[:cntrl:]]'
      THEN 'content_type must be 1 to 255 characters without control characters'
    WHEN p_scope = 'stream' AND p_stream IS NULL THEN 'stream is missing, but the target''s scope is stream'
    WHEN length(p_stream) NOT BETWEEN 1 AND 255 OR p_stream ~ '[[:cntrl:]]'
      THEN 'stream must be 1 to 255 characters without control characters'
    WHEN p_priority NOT BETWEEN 0 AND 3 THEN 'priority must be from 0 (first) to 3 (last)'
    WHEN p_due_at IS NOT NULL AND p_delay_seconds IS NOT NULL THEN 'delay_seconds must not be given with due_at'
    WHEN p_delay_seconds NOT BETWEEN 0 AND 315360000 THEN 'delay_seconds must be from 0 to 315360000 (ten years)'
    -- Clients cannot read back every year that PostgreSQL can store.
    WHEN p_due_at < 'epoch' OR NOT isfinite(p_due_at) OR p_due_at > p_now + interval '10 years'
      THEN 'due_at must be after 1970 and within ten years'
    WHEN p_deadline_at IS NOT NULL AND p_deadline_seconds IS NOT NULL
      THEN 'deadline_seconds must not be given with deadline_at'
    WHEN p_deadline_seconds <= 0 OR p_deadline_seconds > 315360000
      THEN 'deadline_seconds must be above 0 and at most 315360000 (ten years)'
    WHEN p_deadline_at < 'epoch' OR p_last_at > '9999-12-31 00:00:00Z' THEN 'deadline_at must be after 1970 and before 9999-12-31'
    WHEN p_last_at <= greatest(p_now, p_first_due_at)
      THEN CASE WHEN p_deadline_at IS NULL THEN 'deadline_seconds' ELSE 'deadline_at' END
           || ' must be after now and after the intent is due'
    WHEN jsonb_typeof(p_metadata) <> 'object' THEN 'metadata must be an object'
    WHEN leasehold.json_text_bytes(p_metadata) > 16384 THEN 'metadata is over 16 KiB'
    WHEN length(p_trace_context) > 512 OR p_trace_context ~ '[[:cntrl:]]'
      THEN 'trace_context must be up to 512 characters without control characters'
  END
$$;
REVOKE ALL ON FUNCTION leasehold.intent_problem(
  text, jsonb, bytea, integer, text, text, text, text, smallint, timestamptz, double precision, timestamptz, double precision,
  jsonb, text, integer, text, timestamptz, timestamptz, timestamptz) FROM PUBLIC;
