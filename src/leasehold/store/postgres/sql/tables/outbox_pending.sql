-- The only hot table: one row per unfinished intent. A row exists if and only if its intent has no terminal
-- row on the ledger. No index predicate contains a clock.
CREATE TABLE leasehold.outbox_pending (
  intent_id uuid NOT NULL,
  scope text NOT NULL,
  target text COLLATE "C" NOT NULL,
  contract_version integer NOT NULL,
  lease_name text COLLATE "C",
  stream text COLLATE "C",
  stream_seq bigint,
  priority smallint NOT NULL,
  content_bytes integer NOT NULL DEFAULT 0,
  due_at timestamptz NOT NULL,
  deadline_at timestamptz,
  attempt_count integer NOT NULL DEFAULT 0,
  last_state text,
  first_tried_at timestamptz,
  begun_at timestamptz,
  begun_epoch bigint,
  reference text,
  claimed_by text COLLATE "C",
  lease_token uuid,
  lease_expires_at timestamptz,
  last_modified_at timestamptz NOT NULL,
  lease_seconds double precision,
  is_claimable boolean NOT NULL DEFAULT false,
  awaits_confirmation boolean NOT NULL DEFAULT false,
  asked_count integer NOT NULL DEFAULT 0,
  deferred_since timestamptz,
  deferred_reason text,
  deferred_code text,
  deferred_detail text,

  CONSTRAINT outbox_pending_pkey PRIMARY KEY (intent_id),
  -- The rules, each with its name, are in functions/check_pending_row.sql.
  CONSTRAINT outbox_pending_check_row CHECK (leasehold.check_pending_row(
    scope, lease_name, stream, stream_seq, priority, attempt_count, begun_at, begun_epoch, claimed_by, lease_token,
    lease_expires_at, lease_seconds))
) WITH (
  -- A claimed row is longer than a new one. The page has room for both versions of each row, or most claims would not be
  -- heap-only updates. And a vacuum that keeps up with a queue.
  fillfactor = 35,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_threshold = 5000,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- Claims walk it per target and priority, so the backlog of other targets costs nothing. No index has a column that a
-- claim or a heartbeat changes, also not in its predicate: so both are heap-only updates, which write no index and whose
-- old versions are removed without a vacuum. That is why last_modified_at of an item stays as it is then.
CREATE INDEX outbox_pending_due
  ON leasehold.outbox_pending (target, priority, due_at, intent_id)
  WHERE scope = 'item';

-- A leader reads ahead per target and priority, so a flood for one target hides no other target's work.
CREATE INDEX outbox_pending_cluster_due
  ON leasehold.outbox_pending (target, lease_name, priority, due_at, intent_id)
  WHERE scope = 'cluster';

CREATE UNIQUE INDEX outbox_pending_stream_order
  ON leasehold.outbox_pending (target, stream, stream_seq)
  WHERE scope = 'stream';

-- Only heads that somebody may claim are in it, so streams that are held, paused or blocked cost a claimer nothing, and
-- neither do the rows behind a head.
CREATE INDEX outbox_pending_stream_due
  ON leasehold.outbox_pending (target, priority, due_at, intent_id)
  WHERE scope = 'stream' AND is_claimable;

-- Rows of streams that were tried or deferred and did not end, without those that block nothing: for the view blocked_streams.
CREATE INDEX outbox_pending_stream_tried
  ON leasehold.outbox_pending (target, stream, stream_seq)
  WHERE scope = 'stream' AND (last_state IS NOT NULL OR deferred_since IS NOT NULL) AND NOT awaits_confirmation;

CREATE INDEX outbox_pending_stream_awaiting
  ON leasehold.outbox_pending (target, stream, stream_seq)
  WHERE scope = 'stream' AND awaits_confirmation;

CREATE INDEX outbox_pending_changes
  ON leasehold.outbox_pending (lease_name, last_modified_at, intent_id)
  WHERE scope = 'cluster';

-- A stream has no begun_epoch: its begun rows are its first ones, and their epoch is that of the lease.
CREATE INDEX outbox_pending_begun
  ON leasehold.outbox_pending (lease_name)
  WHERE begun_epoch IS NOT NULL;

CREATE INDEX outbox_pending_deadlines
  ON leasehold.outbox_pending (deadline_at)
  WHERE scope = 'item' AND deadline_at IS NOT NULL
    AND (last_state IS NULL OR last_state NOT IN ('IN_DOUBT', 'SUBMITTED'));

-- A call under a lease that was begun is not in it: a deadline does not undo a call. Of a stream it has only the head, and
-- only while nobody holds the stream.
CREATE INDEX outbox_pending_leased_deadlines
  ON leasehold.outbox_pending (deadline_at)
  WHERE (scope = 'cluster' AND begun_epoch IS NULL OR is_claimable) AND deadline_at IS NOT NULL
    AND (last_state IS NULL OR last_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE'));

COMMENT ON TABLE leasehold.outbox_pending IS
  'Unfinished intents: a row exists if and only if the ledger has no terminal row for its intent.';
COMMENT ON COLUMN leasehold.outbox_pending.content_bytes IS
  'How many bytes a claim hands out for it: the text of the payload or the body, and the text of the metadata. Claims '
  'have a budget of bytes and must not read the content to keep it.';
COMMENT ON COLUMN leasehold.outbox_pending.attempt_count IS
  'Cache of the highest attempt_no on the ledger, kept equal in the same transaction.';
COMMENT ON COLUMN leasehold.outbox_pending.last_state IS
  'Cache of the state of the newest ledger row. It tells the next executor whether to call, look up or confirm.';
COMMENT ON COLUMN leasehold.outbox_pending.begun_at IS
  'The durable "about to call" mark. While it is set, the database does not know the outcome of a call.';
COMMENT ON COLUMN leasehold.outbox_pending.first_tried_at IS
  'When the gateway may first have seen the key. The key window of a keyed gateway starts here.';
COMMENT ON COLUMN leasehold.outbox_pending.due_at IS
  'When to act next; infinity if held for a person.';
COMMENT ON COLUMN leasehold.outbox_pending.lease_seconds IS
  'How long the claim was granted for. An expiry further away is impossible: the clock stepped back.';
COMMENT ON COLUMN leasehold.outbox_pending.is_claimable IS
  'True for the head of a stream that nobody holds. It may be true for another row too, which claim_streams corrects; it '
  'is never false for such a head.';
COMMENT ON COLUMN leasehold.outbox_pending.awaits_confirmation IS
  'True if the rows behind it go on: it is SUBMITTED, not held for a person, and its contract has a pipeline. The head of a '
  'stream is its first other row. A stream has at most 100 such rows at a time (pipeline_max).';
COMMENT ON COLUMN leasehold.outbox_pending.asked_count IS
  'How often the gateway was asked about the intent without news. Asking is no attempt and writes no ledger row.';
COMMENT ON COLUMN leasehold.outbox_pending.deferred_since IS
  'Since when its calls are deferred: they had no effect, and say nothing about the intent. NULL after any other ledger row.';
COMMENT ON COLUMN leasehold.outbox_pending.deferred_reason IS
  'Why the newest of these calls was deferred.';

-- Without lease_token: whoever can read it could complete the work of others.
GRANT SELECT (
  intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, content_bytes, due_at,
  deadline_at, attempt_count, last_state, first_tried_at, begun_at, begun_epoch, reference,
  claimed_by, lease_expires_at, last_modified_at, lease_seconds, is_claimable, awaits_confirmation,
  asked_count, deferred_since, deferred_reason, deferred_code, deferred_detail
) ON leasehold.outbox_pending
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
