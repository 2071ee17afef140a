-- The calls that the holder of a cluster lease may have in flight, one row per batch: the database knows a
-- leader's calls without a write for each of them. Whoever takes the lease over puts them in doubt. Calls that
-- must be begun one by one (begin_leased_attempts) are not here.
CREATE TABLE leasehold.call_marks (
  lease_name text COLLATE "C" NOT NULL,
  mark_no integer NOT NULL,
  lease_epoch bigint NOT NULL,
  intent_ids uuid[] NOT NULL,
  attempt_numbers integer[] NOT NULL,

  CONSTRAINT call_marks_pkey PRIMARY KEY (lease_name, mark_no),
  CONSTRAINT call_marks_numbered CHECK (cardinality(intent_ids) = cardinality(attempt_numbers))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Ids are random, so compressing them gains nothing.
ALTER TABLE leasehold.call_marks ALTER COLUMN intent_ids SET STORAGE EXTERNAL;

COMMENT ON TABLE leasehold.call_marks IS
  'Calls that the holder of a cluster lease may have in flight, and the epoch; one row per batch.';
COMMENT ON COLUMN leasehold.call_marks.mark_no IS
  'The holder reuses a number when all calls under it have ended, so there are few rows.';
COMMENT ON COLUMN leasehold.call_marks.attempt_numbers IS
  'The attempt number of each call. Once that attempt is on the ledger, the call is no longer in flight.';

GRANT SELECT ON leasehold.call_marks
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
