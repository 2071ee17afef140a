-- What the holder of a lease may be calling right now, one row for each batch that it called together: so a
-- leader's calls are known to the database without a write for each of them. Whoever takes the lease over
-- puts them in doubt. What must be begun one by one (begin_leased_attempts) is not here.
CREATE TABLE leasehold.call_marks (
  lease_name text COLLATE "C" NOT NULL,
  mark_no integer NOT NULL,
  lease_epoch bigint NOT NULL,
  intent_ids uuid[] NOT NULL,
  attempt_numbers integer[] NOT NULL,

  CONSTRAINT call_marks_pkey PRIMARY KEY (lease_name, mark_no),
  CONSTRAINT call_marks_numbered CHECK (cardinality(intent_ids) = cardinality(attempt_numbers))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Ids are random: to compress them is lost time.
ALTER TABLE leasehold.call_marks ALTER COLUMN intent_ids SET STORAGE EXTERNAL;

COMMENT ON TABLE leasehold.call_marks IS
  'Which calls the holder of a cluster lease may have in flight, under which epoch; one row per batch.';
COMMENT ON COLUMN leasehold.call_marks.mark_no IS
  'The holder uses a number again when all calls under it have ended, so there are few of them.';
COMMENT ON COLUMN leasehold.call_marks.attempt_numbers IS
  'Of each intent the attempt that its call is: once that is on the ledger, the call is no longer in flight.';

GRANT SELECT ON leasehold.call_marks
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
