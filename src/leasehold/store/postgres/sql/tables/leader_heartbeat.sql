-- The last report of each leader, for people and monitoring. Nothing is decided by it.
CREATE TABLE leasehold.leader_heartbeat (
  lease_name text COLLATE "C" NOT NULL,
  instance_id text NOT NULL,
  lease_epoch bigint NOT NULL,
  last_seen_at timestamptz NOT NULL,
  detail jsonb NOT NULL,

  CONSTRAINT leader_heartbeat_pkey PRIMARY KEY (lease_name)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.leader_heartbeat IS
  'Written by leaders, under their lease. Who leads is decided by leases, not here.';

GRANT SELECT ON leasehold.leader_heartbeat
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
