-- The ledger: one row per try or intervention. Rows are never changed or deleted. It is partitioned by id
-- range: a UUIDv7 starts with its time, so a partition holds a month of accepted intents, and retention drops
-- whole partitions.
CREATE TABLE leasehold.outbox_attempts (
  intent_id uuid NOT NULL,
  attempt_no integer NOT NULL,
  state text NOT NULL,
  reason text,
  holder text NOT NULL,
  lease_token uuid,
  lease_name text,
  lease_epoch bigint,
  started_at timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  reference text,
  code text,
  detail text,
  transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),

  CONSTRAINT outbox_attempts_pkey PRIMARY KEY (intent_id, attempt_no),
  -- The rules, each with its name, are in functions/check_attempt_row.sql.
  CONSTRAINT outbox_attempts_check_row CHECK (leasehold.check_attempt_row(
    attempt_no, state, reason, lease_token, lease_epoch, started_at, finished_at, reference, code, detail))
) PARTITION BY RANGE (intent_id);

-- For ids outside the months created ahead of time: a wrong clock must not lose a ledger row.
CREATE TABLE leasehold.outbox_attempts_default PARTITION OF leasehold.outbox_attempts DEFAULT;

CREATE UNIQUE INDEX outbox_attempts_one_terminal_per_intent ON leasehold.outbox_attempts (intent_id)
  WHERE state IN ('DISPATCHED', 'FAILED', 'CANCELLED');

-- Rows arrive in the order of finished_at, so a block range index finds "the last hour" and costs almost
-- nothing per write.
CREATE INDEX outbox_attempts_finished ON leasehold.outbox_attempts
  USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);

-- The order of events. Nothing can appear behind a reader in it; see read_events.
CREATE INDEX outbox_attempts_events
  ON leasehold.outbox_attempts (transaction_id, intent_id, attempt_no);

COMMENT ON TABLE leasehold.outbox_attempts IS
  'The append-only ledger: every try and intervention, numbered per intent without gaps.';
COMMENT ON COLUMN leasehold.outbox_attempts.transaction_id IS
  'The transaction that wrote the row. Rows of transactions older than every open one are complete.';
COMMENT ON INDEX leasehold.outbox_attempts_one_terminal_per_intent IS
  'Invariant: an intent has at most one terminal outcome (DISPATCHED, FAILED or CANCELLED), ever. '
  'A violation stopped here is a defect elsewhere, counted as terminal_guard_hit.';

GRANT SELECT (
  intent_id, attempt_no, state, reason, holder, lease_name, lease_epoch, started_at, finished_at,
  reference, code, detail, transaction_id
) ON leasehold.outbox_attempts
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
