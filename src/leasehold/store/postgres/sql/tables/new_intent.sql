-- One intent as a caller gives it, before it is judged; see enqueue_intents.
CREATE TYPE leasehold.new_intent AS (
  target text,
  payload jsonb,
  body text,
  content_type text,
  idempotency_key text,
  key_scope text,
  stream text,
  priority smallint,
  due_at timestamptz,
  delay_seconds double precision,
  deadline_at timestamptz,
  deadline_seconds double precision,
  metadata jsonb,
  trace_context text
);

COMMENT ON TYPE leasehold.new_intent IS
  'The fields of an intent in a call of enqueue_intents; body is base64.';
