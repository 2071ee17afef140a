-- What the leader of each group last said of itself. For people and monitoring: nobody decides by it.
CREATE TABLE leasehold.leader_heartbeat (
  lease_name text COLLATE "C" NOT NULL,
  instance_id text NOT NULL,
  lease_epoch bigint NOT NULL,
  last_seen_at timestamptz NOT NULL,
  detail jsonb NOT NULL,

  CONSTRAINT leader_heartbeat_pkey PRIMARY KEY (lease_name)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.leader_heartbeat IS
  'Written by leaders only, under their lease; leadership itself is in leases.';

GRANT SELECT ON leasehold.leader_heartbeat
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
