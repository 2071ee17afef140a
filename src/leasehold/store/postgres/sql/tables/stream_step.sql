-- What decide_streams decides about a stream, one step per head that the caller gets, and what advance_streams does then. row_id
-- is the pending row that leads to the stream, or the head; is_row_changed says that it gets what stands here.
CREATE TYPE leasehold.stream_step AS (
  lease_name text,
  lease_epoch bigint,
  expires_at timestamptz,
  grace_expires_at timestamptz,
  target text,
  stream text,
  stream_state text,
  wait_seconds double precision,
  is_continued boolean,
  is_held boolean,
  is_settled boolean,
  place integer,
  row_id uuid,
  is_given boolean,
  is_begun_now boolean,
  is_claimable boolean,
  row_due_at timestamptz,
  is_row_changed boolean
);

COMMENT ON TYPE leasehold.stream_step IS 'A decision about a stream, passed between functions; not part of the interface.';
