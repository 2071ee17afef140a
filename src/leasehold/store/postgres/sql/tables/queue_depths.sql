-- How many unfinished intents each target with a limit (pending_max) has, as record_queue_depths last counted them. All
-- instances that accept intents over HTTP read it.
CREATE TABLE leasehold.queue_depths (
  target text COLLATE "C" NOT NULL,
  pending_max integer NOT NULL,
  depth bigint NOT NULL DEFAULT 0,
  seen_at timestamptz NOT NULL DEFAULT '-infinity',
  limit_read_at timestamptz NOT NULL,
  due_from timestamptz[] NOT NULL DEFAULT '{-infinity,-infinity,-infinity,-infinity}',

  CONSTRAINT queue_depths_pkey PRIMARY KEY (target)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.queue_depths IS 'The last count of each queue that has a limit, up to the limit.';
COMMENT ON COLUMN leasehold.queue_depths.seen_at IS 'When the count began; -infinity before the first.';
COMMENT ON COLUMN leasehold.queue_depths.limit_read_at IS 'When the limit was read from the contract.';
COMMENT ON COLUMN leasehold.queue_depths.due_from IS
  'The low-water marks of the next count, by priority: rows that are due earlier are dead. Streams have none.';

GRANT SELECT ON leasehold.queue_depths TO leasehold_operator, leasehold_readonly, leasehold_auditor;
