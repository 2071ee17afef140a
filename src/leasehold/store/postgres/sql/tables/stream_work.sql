-- What can be done next in a stream, with the content of its heads: claim_streams, refresh_streams and record_stream_attempts
-- return one per stream, or one per head if the stream is ready. advance_streams explains the columns.
CREATE TYPE leasehold.stream_work AS (
  lease_name text,
  lease_epoch bigint,
  expires_at timestamptz,
  grace_expires_at timestamptz,
  target text,
  stream text,
  stream_state text,
  wait_seconds double precision,
  is_held boolean,
  is_taken_over boolean,
  intent_id uuid,
  contract_version integer,
  attempt_no integer,
  last_state text,
  reference text,
  priority smallint,
  submission_key uuid,
  fencing_token bigint,
  payload jsonb,
  body bytea,
  content_type text,
  metadata jsonb,
  trace_context text,
  created_at timestamptz,
  due_at timestamptz,
  deadline_at timestamptz,
  first_tried_at timestamptz,
  begun_at timestamptz,
  seen_at timestamptz
);

COMMENT ON TYPE leasehold.stream_work IS 'The next work of a stream.';
