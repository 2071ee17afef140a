-- What became of one result in record_stream_attempts: the verdict, and if it is applied, the ledger row and when the intent is due.
CREATE TYPE leasehold.stream_result AS (
  intent_id uuid,
  verdict text,
  attempt_no integer,
  state text,
  reason text,
  due_at timestamptz
);

COMMENT ON TYPE leasehold.stream_result IS 'The verdict on a result of a stream.';
