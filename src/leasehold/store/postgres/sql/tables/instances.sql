-- Running instances, for people and monitoring. Only the fair shares of streams are decided by it.
CREATE TABLE leasehold.instances (
  instance_id text COLLATE "C" NOT NULL,
  role text NOT NULL,
  stream_targets text[] NOT NULL,
  detail jsonb NOT NULL,
  started_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  alive_until timestamptz NOT NULL,
  streams_held integer[] NOT NULL DEFAULT '{}',
  streams_wanted integer[] NOT NULL DEFAULT '{}',

  CONSTRAINT instances_pkey PRIMARY KEY (instance_id),
  CONSTRAINT instances_role_known CHECK (role IN ('leader', 'follower', 'standalone', 'worker', 'api')),
  CONSTRAINT instances_id_bounded CHECK (length(instance_id) BETWEEN 1 AND 128)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.instances IS 'The last report of each instance. The view instance_status says who is alive and leads.';
COMMENT ON COLUMN leasehold.instances.streams_held IS 'How many streams it holds, one number per entry of stream_targets.';
COMMENT ON COLUMN leasehold.instances.streams_wanted IS
  'For how many more streams it has free slots and found none, one number per entry of stream_targets.';

GRANT SELECT ON leasehold.instances
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
