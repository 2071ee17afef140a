-- Cluster and stream leases. A cluster lease is never deleted, so an epoch never goes back. The lease of a stream is
-- created with the stream; prune_streams deletes both, and stream_floors keeps the epoch from going back.
-- A stream that nobody holds has the expiry -infinity. A finite expiry in the past means that somebody must look at the
-- stream: its holder died, or released it while an enqueuer's transaction was open.
CREATE TABLE leasehold.leases (
  lease_name text COLLATE "C" NOT NULL,
  holder_id text NOT NULL,
  lease_epoch bigint NOT NULL,
  acquired_at timestamptz NOT NULL,
  renewed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  grace_expires_at timestamptz NOT NULL,
  yield_seconds double precision,
  lease_seconds double precision NOT NULL DEFAULT 0,
  grace_seconds double precision NOT NULL DEFAULT 0,
  target text COLLATE "C",
  stream text COLLATE "C",
  paused_since timestamptz,
  paused_until timestamptz,

  CONSTRAINT leases_pkey PRIMARY KEY (lease_name),
  -- Makes the epoch a key column. So an acquire is a key update, which waits for fenced writers (FOR KEY
  -- SHARE), and a renewal is not.
  CONSTRAINT leases_one_holder_per_epoch UNIQUE (lease_name, lease_epoch),
  CONSTRAINT leases_name_bounded CHECK (length(lease_name) BETWEEN 1 AND 400),
  CONSTRAINT leases_holder_bounded CHECK (length(holder_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_epoch_natural CHECK (lease_epoch >= 0),
  CONSTRAINT leases_grace_after_expiry CHECK (grace_expires_at >= expires_at),
  CONSTRAINT leases_yield_positive CHECK (yield_seconds > 0),
  CONSTRAINT leases_stream_named CHECK (num_nonnulls(target, stream) IN (0, 2)),
  CONSTRAINT leases_paused_from_to CHECK (num_nonnulls(paused_since, paused_until) IN (0, 2))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Streams that are held or that somebody must look at. Free ones are not in it.
CREATE INDEX leases_stream_expiry ON leasehold.leases (target, expires_at)
  WHERE stream IS NOT NULL AND expires_at > '-infinity';

CREATE INDEX leases_paused ON leasehold.leases (target, stream) WHERE paused_since IS NOT NULL;

COMMENT ON TABLE leasehold.leases IS
  'Who holds each lease, under which epoch, and until when on the database''s clock.';
COMMENT ON COLUMN leasehold.leases.lease_epoch IS
  'The fencing token: +1 on every acquire, never on renew. 0: created, not yet held.';
COMMENT ON COLUMN leasehold.leases.grace_expires_at IS
  'End of the second phase of expiry: until then a stream with a call in flight is not taken over.';
COMMENT ON COLUMN leasehold.leases.lease_seconds IS
  'How long the lease was last granted for. An expiry further away is impossible: the clock was set back, and '
  'whoever wants the lease corrects it (repair_lease_times).';
COMMENT ON COLUMN leasehold.leases.grace_seconds IS 'How long the second phase of expiry was granted for.';
COMMENT ON COLUMN leasehold.leases.yield_seconds IS
  'Set if the holder was elected by an advisory lock. This long after its last renewal it begins nothing new, '
  'and whoever has the lock may take the lease before it expires.';
COMMENT ON COLUMN leasehold.leases.paused_until IS
  'Until when nothing of the stream is executed: the latest end of its reasons in stream_pauses; infinity: until a person '
  'resumes it. It is here and not in streams, because no executor may wait for an enqueuer, who locks that row.';

GRANT SELECT ON leasehold.leases
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
