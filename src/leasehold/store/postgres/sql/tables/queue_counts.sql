-- What record_queue_counts found in each segment of outbox_pending when it last read it, by last state and number of
-- attempts. The view supervisor adds the rows up. A segment without pending rows has one row, of zeros.
CREATE TABLE leasehold.queue_counts (
  segment_no integer NOT NULL,
  last_state text COLLATE "C" NOT NULL,
  attempt_count integer NOT NULL,
  pending bigint NOT NULL,
  due bigint NOT NULL,
  leased bigint NOT NULL,
  expired_leases bigint NOT NULL,
  due_unleased bigint NOT NULL,
  held bigint NOT NULL,
  oldest_created_at timestamptz,
  oldest_doubt_at timestamptz,
  segments integer NOT NULL,
  seen_at timestamptz NOT NULL,
  deferred bigint NOT NULL DEFAULT 0,
  oldest_deferred_since timestamptz,

  CONSTRAINT queue_counts_pkey PRIMARY KEY (segment_no, last_state, attempt_count)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.queue_counts IS 'Counts of pending rows per segment of the table; read the view supervisor.';
COMMENT ON COLUMN leasehold.queue_counts.last_state IS 'As in outbox_pending; NEW if the intent was never tried.';
COMMENT ON COLUMN leasehold.queue_counts.segments IS 'How many segments outbox_pending had at that moment.';
