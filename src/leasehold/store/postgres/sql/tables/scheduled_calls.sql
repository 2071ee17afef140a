-- What the holder of a lease may be calling right now, one row for each batch that it called together: so a
-- leader's calls are known to the database without a write for each of them. Whoever takes the lease over
-- puts them in doubt. What must be begun one by one (begin_leased_attempts) is not here.
CREATE TABLE leasehold.scheduled_calls (
  lease_name text COLLATE "C" NOT NULL,
  mark_no integer NOT NULL,
  lease_epoch bigint NOT NULL,
  intent_ids uuid[] NOT NULL,
  attempt_numbers integer[] NOT NULL,

  CONSTRAINT scheduled_calls_pkey PRIMARY KEY (lease_name, mark_no),
  CONSTRAINT scheduled_calls_numbered CHECK (cardinality(intent_ids) = cardinality(attempt_numbers))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Ids are random: to compress them is lost time.
ALTER TABLE leasehold.scheduled_calls ALTER COLUMN intent_ids SET STORAGE EXTERNAL;

COMMENT ON TABLE leasehold.scheduled_calls IS
  'Which calls the holder of a cluster lease may have in flight, under which epoch; one row per batch.';
COMMENT ON COLUMN leasehold.scheduled_calls.mark_no IS
  'The holder uses a number again when all calls under it have ended, so there are few of them.';
COMMENT ON COLUMN leasehold.scheduled_calls.attempt_numbers IS
  'Of each intent the attempt that its call is: once that is on the ledger, the call is no longer in flight.';

GRANT SELECT ON leasehold.scheduled_calls
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
