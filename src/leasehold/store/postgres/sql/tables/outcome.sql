-- The outcome of one try, on its way to the ledger.
CREATE TYPE leasehold.outcome AS (
  intent_id uuid,
  state text,
  holder text,
  reason text,
  lease_token uuid,
  lease_name text,
  lease_epoch bigint,
  reference text,
  code text,
  detail text,
  retry_after_seconds double precision,
  elapsed_seconds double precision,
  attempt_no integer
);

COMMENT ON TYPE leasehold.outcome IS 'One outcome, passed between functions; not part of the interface.';
