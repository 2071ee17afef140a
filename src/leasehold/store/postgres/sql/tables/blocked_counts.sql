-- How many streams of each target wait until a person resumes them, as record_blocked_counts last found. The view supervisor
-- shows it.
CREATE TABLE leasehold.blocked_counts (
  target text COLLATE "C" NOT NULL,
  blocked bigint NOT NULL,
  seen_at timestamptz NOT NULL,

  CONSTRAINT blocked_counts_pkey PRIMARY KEY (target)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.blocked_counts IS 'Counts of paused streams per target; read the view supervisor.';
