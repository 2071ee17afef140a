-- Create the types and tables of the first release, and the functions that their CHECKs call.

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

-- What judge_outcomes decides about one outcome. place, begun_at and known_reference are those of the pending row.
-- refusal: why the outcome is not applied, NULL if it is. The others say what is written then: new_attempt_no, new_state
-- and new_reason are those of the ledger row (without a state there is none), and next_due_at is NULL if the intent ends.
CREATE TYPE leasehold.judgement AS (
  place tid,
  begun_at timestamptz,
  known_reference text,
  refusal text,
  new_attempt_no integer,
  new_state text,
  new_reason text,
  next_due_at timestamptz
);

COMMENT ON TYPE leasehold.judgement IS 'A decision about an outcome, passed between functions; not part of the interface.';

-- One intent as a caller gives it, before it is judged; see enqueue_intents.
CREATE TYPE leasehold.new_intent AS (
  target text,
  payload jsonb,
  body text,
  content_type text,
  idempotency_key text,
  key_scope text,
  stream text,
  priority smallint,
  due_at timestamptz,
  delay_seconds double precision,
  deadline_at timestamptz,
  deadline_seconds double precision,
  metadata jsonb,
  trace_context text
);

COMMENT ON TYPE leasehold.new_intent IS
  'The fields of an intent in a call of enqueue_intents; body is base64.';

-- What can be done next in a stream, with the content of its heads: claim_streams, refresh_streams and record_stream_attempts
-- return one per stream, or one per head if the stream is ready. advance_streams explains the columns.
CREATE TYPE leasehold.stream_work AS (
  lease_name text,
  lease_epoch bigint,
  expires_at timestamptz,
  grace_expires_at timestamptz,
  target text,
  stream text,
  stream_state text,
  wait_seconds double precision,
  is_held boolean,
  is_taken_over boolean,
  intent_id uuid,
  contract_version integer,
  attempt_no integer,
  last_state text,
  reference text,
  priority smallint,
  submission_key uuid,
  fencing_token bigint,
  payload jsonb,
  body bytea,
  content_type text,
  metadata jsonb,
  trace_context text,
  created_at timestamptz,
  due_at timestamptz,
  deadline_at timestamptz,
  first_tried_at timestamptz,
  begun_at timestamptz,
  seen_at timestamptz
);

COMMENT ON TYPE leasehold.stream_work IS 'The next work of a stream.';

-- What became of one result in record_stream_attempts: the verdict, and if it is applied, the ledger row and when the intent is due.
CREATE TYPE leasehold.stream_result AS (
  intent_id uuid,
  verdict text,
  attempt_no integer,
  state text,
  reason text,
  due_at timestamptz
);

COMMENT ON TYPE leasehold.stream_result IS 'The verdict on a result of a stream.';

-- What decide_streams decides about a stream, one step per head that the caller gets, and what advance_streams does then. row_id
-- is the pending row that leads to the stream, or the head; is_row_changed says that it gets what stands here.
CREATE TYPE leasehold.stream_step AS (
  lease_name text,
  lease_epoch bigint,
  expires_at timestamptz,
  grace_expires_at timestamptz,
  target text,
  stream text,
  stream_state text,
  wait_seconds double precision,
  is_continued boolean,
  is_held boolean,
  is_settled boolean,
  place integer,
  row_id uuid,
  is_given boolean,
  is_begun_now boolean,
  is_claimable boolean,
  row_due_at timestamptz,
  is_row_changed boolean
);

COMMENT ON TYPE leasehold.stream_step IS 'A decision about a stream, passed between functions; not part of the interface.';

-- One row per version of a target's terms, immutable. The highest version is current; an intent keeps the
-- version under which it was accepted. The other columns are generated from the terms, so the functions
-- always decide by what was published.
CREATE TABLE leasehold.contracts (
  target text COLLATE "C" NOT NULL,
  version integer NOT NULL,
  terms jsonb NOT NULL,
  published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  published_by text NOT NULL,
  scope text NOT NULL GENERATED ALWAYS AS (terms ->> 'scope') STORED,
  guarantee text NOT NULL GENERATED ALWAYS AS (terms ->> 'guarantee') STORED,
  lease_name text GENERATED ALWAYS AS (terms ->> 'lease_name') STORED,
  retry_policy text NOT NULL GENERATED ALWAYS AS (terms ->> 'retry_policy') STORED,
  attempts_max integer NOT NULL GENERATED ALWAYS AS ((terms ->> 'attempts_max')::integer) STORED,
  priority smallint NOT NULL
    GENERATED ALWAYS AS (coalesce((terms ->> 'priority')::numeric::smallint, 1::smallint)) STORED,
  deadline_seconds double precision
    GENERATED ALWAYS AS ((terms ->> 'deadline_seconds')::double precision) STORED,
  lease_seconds double precision NOT NULL
    GENERATED ALWAYS AS ((terms ->> 'lease_seconds')::double precision) STORED,
  call_timeout_seconds double precision NOT NULL
    GENERATED ALWAYS AS ((terms ->> 'call_timeout_seconds')::double precision) STORED,
  quarantine_seconds double precision NOT NULL
    GENERATED ALWAYS AS ((terms ->> 'quarantine_seconds')::double precision) STORED,
  key_window_seconds double precision
    GENERATED ALWAYS AS ((terms ->> 'key_window_seconds')::double precision) STORED,
  can_look_up boolean NOT NULL GENERATED ALWAYS AS
    (coalesce((terms ->> 'can_look_up')::boolean, terms ->> 'guarantee' = 'lookup')) STORED,
  on_failure text NOT NULL GENERATED ALWAYS AS (coalesce(terms ->> 'on_failure', 'block')) STORED,
  block_seconds double precision GENERATED ALWAYS AS ((terms ->> 'block_seconds')::double precision) STORED,
  batch_max integer NOT NULL GENERATED ALWAYS AS (coalesce((terms ->> 'batch_max')::integer, 1)) STORED,
  confirm_within_seconds double precision
    GENERATED ALWAYS AS ((terms ->> 'confirm_within_seconds')::double precision) STORED,
  pipeline_max integer NOT NULL GENERATED ALWAYS AS (coalesce((terms ->> 'pipeline_max')::integer, 1)) STORED,

  CONSTRAINT contracts_pkey PRIMARY KEY (target, version),
  CONSTRAINT contracts_target_form CHECK (target ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  CONSTRAINT contracts_version_positive CHECK (version > 0),
  CONSTRAINT contracts_scope_known CHECK (scope IN ('item', 'stream', 'cluster')),
  CONSTRAINT contracts_guarantee_known CHECK (guarantee IN ('keyed', 'fenced', 'lookup', 'blind')),
  CONSTRAINT contracts_retry_policy_known
    CHECK (retry_policy IN ('max_attempts', 'deadline', 'one_shot')),
  CONSTRAINT contracts_retry_ceiling CHECK (attempts_max BETWEEN 1 AND 20),
  CONSTRAINT contracts_one_shot_is_one CHECK (retry_policy <> 'one_shot' OR attempts_max = 1),
  CONSTRAINT contracts_deadline_policy_has_one
    CHECK (retry_policy <> 'deadline' OR deadline_seconds IS NOT NULL),
  -- The upper bounds also refuse NaN, which is greater than every number, and spans that no interval can
  -- hold, which would make every completion fail.
  CONSTRAINT contracts_deadline_bounded CHECK (deadline_seconds > 0 AND deadline_seconds <= 315360000),
  CONSTRAINT contracts_lease_bounded CHECK (lease_seconds > 0 AND lease_seconds <= 86400),
  CONSTRAINT contracts_call_timeout_bounded CHECK (call_timeout_seconds > 0 AND call_timeout_seconds <= 86400),
  CONSTRAINT contracts_quarantine_bounded CHECK (quarantine_seconds <= 2592000),
  CONSTRAINT contracts_key_window_bounded CHECK (key_window_seconds > 0 AND key_window_seconds <= 315360000),
  -- A lookup's "not found" is reliable only when a paused executor can no longer send.
  CONSTRAINT contracts_quarantine_outlasts_a_paused_call
    CHECK (quarantine_seconds >= greatest(2 * lease_seconds, call_timeout_seconds)),
  CONSTRAINT contracts_cluster_names_its_lease CHECK ((scope = 'cluster') = (lease_name IS NOT NULL)),
  CONSTRAINT contracts_lease_name_form
    CHECK (length(lease_name) BETWEEN 1 AND 64 AND lease_name !~ '[[:cntrl:]/]'),
  CONSTRAINT contracts_on_failure_known CHECK (on_failure IN ('block', 'continue', 'block_for')),
  CONSTRAINT contracts_block_for_has_a_time CHECK ((on_failure = 'block_for') = (block_seconds IS NOT NULL)),
  CONSTRAINT contracts_block_bounded CHECK (block_seconds > 0 AND block_seconds <= 2592000),
  CONSTRAINT contracts_batch_bounded CHECK (batch_max BETWEEN 1 AND 100),
  CONSTRAINT contracts_batches_are_of_streams CHECK (batch_max = 1 OR scope = 'stream'),
  CONSTRAINT contracts_confirmation_bounded CHECK (confirm_within_seconds > 0 AND confirm_within_seconds <= 2592000),
  CONSTRAINT contracts_pipeline_bounded CHECK (pipeline_max BETWEEN 1 AND 100),
  CONSTRAINT contracts_pipelines_are_confirmed CHECK (pipeline_max = 1 OR scope = 'stream' AND can_look_up)
);

-- Mostly empty: whoever serves streams asks first whether there are pipelines at all.
CREATE INDEX contracts_pipelined ON leasehold.contracts (target, version) WHERE pipeline_max > 1;

COMMENT ON TABLE leasehold.contracts IS
  'The terms of each target by version; insert-only. The highest version is current.';

GRANT SELECT ON leasehold.contracts
  TO leasehold_ingest, leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;

-- Refuse a row that breaks a rule of its table (23514), with the name of the rule as the constraint. Volatile, so
-- that the planner never evaluates it in advance. Locks nothing.
CREATE FUNCTION leasehold.refuse_row(p_table text, p_rule text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'a row of % violates the rule %', p_table, p_rule
    USING ERRCODE = '23514', SCHEMA = 'leasehold', TABLE = p_table, CONSTRAINT = p_rule;
END
$$;

-- Check a row of intents: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK. PostgreSQL parses a CHECK for each statement, but a function once per session;
-- see docs/decisions/0011. As in a CHECK, NULL breaks no rule. Locks nothing.
CREATE FUNCTION leasehold.check_intent_row(
  p_payload jsonb, p_body bytea, p_content_type text, p_idempotency_key text, p_stream text, p_payload_hash bytea
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN num_nonnulls(p_payload, p_body) <> 1 THEN 'intents_payload_or_body'
    WHEN (p_body IS NULL) <> (p_content_type IS NULL) THEN 'intents_body_names_its_type'
    WHEN length(p_idempotency_key) NOT BETWEEN 1 AND 255 THEN 'intents_key_bounded'
    WHEN length(p_stream) NOT BETWEEN 1 AND 255 THEN 'intents_stream_bounded'
    WHEN octet_length(p_body) > 1048576 THEN 'intents_body_bounded'
    WHEN octet_length(p_payload_hash) <> 32 THEN 'intents_hash_is_sha256'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('intents', v_broken);
  END IF;
  RETURN true;
END
$$;

-- Accepted intents, as they were accepted. Insert-only; only retention removes rows.
-- There are no foreign keys on purpose: every enqueue would lock the one contract row of its target. The
-- functions are the only writers and keep the references correct.
CREATE TABLE leasehold.intents (
  intent_id uuid NOT NULL,
  target text COLLATE "C" NOT NULL,
  contract_version integer NOT NULL,
  stream text COLLATE "C",
  stream_seq bigint,
  idempotency_key text COLLATE "C",
  is_key_of_all_targets boolean NOT NULL DEFAULT false,
  submission_key uuid NOT NULL,
  payload jsonb,
  body bytea,
  content_type text,
  payload_hash bytea,
  metadata jsonb,
  trace_context text,
  created_at timestamptz NOT NULL,
  deadline_at timestamptz,
  redrive_of uuid,
  token_base bigint NOT NULL DEFAULT 0,

  CONSTRAINT intents_pkey PRIMARY KEY (intent_id),
  -- The rules, each with its name, are in functions/check_intent_row.sql.
  CONSTRAINT intents_check_row CHECK (
    leasehold.check_intent_row(payload, body, content_type, idempotency_key, stream, payload_hash))
);

CREATE UNIQUE INDEX intents_one_per_key ON leasehold.intents (target, idempotency_key)
  WHERE idempotency_key IS NOT NULL;

CREATE UNIQUE INDEX intents_one_per_key_of_all_targets ON leasehold.intents (idempotency_key)
  WHERE is_key_of_all_targets;

CREATE UNIQUE INDEX intents_one_redrive_per_intent ON leasehold.intents (redrive_of)
  WHERE redrive_of IS NOT NULL;

COMMENT ON TABLE leasehold.intents IS 'Accepted intents, immutable.';
COMMENT ON COLUMN leasehold.intents.is_key_of_all_targets IS
  'True if the sender gave the key for all targets (key_scope all): no other such intent can have the same key, '
  'whatever its target.';
COMMENT ON COLUMN leasehold.intents.submission_key IS
  'The idempotency key that the gateway receives, the same on every try: the intent id, or the key of the '
  'intent that this one redrives, unless that one is known to have had no effect.';
COMMENT ON COLUMN leasehold.intents.token_base IS
  'Added to the floor of the generation, the epoch and the attempt number to make the fencing token. At least what was '
  'ever added to a floor for the same submission key before this intent, so that a redrive never sends a lower token.';
COMMENT ON COLUMN leasehold.intents.payload_hash IS
  'SHA-256 of the normal form (jsonb text, or content type and body), so that a different order of JSON keys '
  'is no conflict. NULL if there is no idempotency key, because nobody can repeat the intent then.';

-- Readers see everything except the content and its hash, from which a small payload could be guessed; the auditor
-- sees them too.
GRANT SELECT (
  intent_id, target, contract_version, stream, stream_seq, idempotency_key, is_key_of_all_targets,
  submission_key, content_type, metadata, trace_context, created_at, deadline_at, redrive_of,
  token_base
) ON leasehold.intents TO leasehold_executor, leasehold_operator, leasehold_readonly;
GRANT SELECT ON leasehold.intents TO leasehold_auditor;

-- Check a row of outbox_pending: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK; see check_intent_row. Locks nothing.
CREATE FUNCTION leasehold.check_pending_row(
  p_scope text, p_lease_name text, p_stream text, p_stream_seq bigint, p_priority smallint,
  p_attempt_count integer, p_begun_at timestamptz, p_begun_epoch bigint, p_claimed_by text, p_lease_token uuid,
  p_lease_expires_at timestamptz, p_lease_seconds double precision
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN num_nonnulls(p_claimed_by, p_lease_token, p_lease_expires_at, p_lease_seconds) NOT IN (0, 4)
      THEN 'outbox_pending_lease_all_or_none'
    WHEN p_scope NOT IN ('item', 'stream', 'cluster') THEN 'outbox_pending_scope_known'
    WHEN (p_scope = 'item') <> (p_lease_name IS NULL) THEN 'outbox_pending_only_items_lack_a_lease'
    WHEN p_scope <> 'item' AND p_claimed_by IS NOT NULL THEN 'outbox_pending_claims_are_items'
    WHEN p_scope = 'stream' AND (p_stream IS NULL OR p_stream_seq IS NULL) THEN 'outbox_pending_stream_is_ordered'
    WHEN p_begun_epoch IS NOT NULL AND p_begun_at IS NULL THEN 'outbox_pending_begun_under_epoch'
    WHEN p_priority NOT BETWEEN 0 AND 3 THEN 'outbox_pending_priority_level'
    WHEN p_attempt_count < 0 THEN 'outbox_pending_attempt_count_natural'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('outbox_pending', v_broken);
  END IF;
  RETURN true;
END
$$;

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

-- Check a row of the ledger: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK; see check_intent_row. Locks nothing.
CREATE FUNCTION leasehold.check_attempt_row(
  p_attempt_no integer, p_state text, p_reason text, p_lease_token uuid, p_lease_epoch bigint,
  p_started_at timestamptz, p_finished_at timestamptz, p_reference text, p_code text, p_detail text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN p_attempt_no < 1 THEN 'outbox_attempts_number_positive'
    WHEN p_state NOT IN ('DISPATCHED', 'FAILED', 'CANCELLED', 'RETRYABLE', 'ZOMBIE_REQUEUE', 'IN_DOUBT', 'SUBMITTED')
      THEN 'outbox_attempts_state_known'
    WHEN p_attempt_no > 20 AND p_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE') THEN 'outbox_attempts_retry_ceiling'
    WHEN p_lease_token IS NOT NULL AND p_lease_epoch IS NOT NULL THEN 'outbox_attempts_token_or_epoch'
    WHEN p_finished_at < p_started_at THEN 'outbox_attempts_time_runs_forward'
    WHEN length(p_reason) > 64 THEN 'outbox_attempts_reason_bounded'
    WHEN length(p_code) > 64 THEN 'outbox_attempts_code_bounded'
    WHEN length(p_reference) > 255 THEN 'outbox_attempts_reference_bounded'
    WHEN length(p_detail) > 2000 THEN 'outbox_attempts_detail_bounded'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('outbox_attempts', v_broken);
  END IF;
  RETURN true;
END
$$;

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

-- Cluster and stream leases. A cluster lease is never deleted, so an epoch never goes back. The lease of a stream is
-- created with the stream; prune_streams deletes both, and stream_floors keeps the epoch from going back.
-- A stream that nobody holds has the expiry -infinity. A finite expiry in the past means that somebody must look at the
-- stream: its holder died, or released it while an enqueuer's transaction was open.
CREATE TABLE leasehold.leases (
  lease_name text COLLATE "C" NOT NULL,
  holder_id text NOT NULL,
  lease_epoch bigint NOT NULL,
  acquired_at timestamptz NOT NULL,
  renewed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  grace_expires_at timestamptz NOT NULL,
  yield_seconds double precision,
  lease_seconds double precision NOT NULL DEFAULT 0,
  grace_seconds double precision NOT NULL DEFAULT 0,
  target text COLLATE "C",
  stream text COLLATE "C",
  paused_since timestamptz,
  paused_until timestamptz,

  CONSTRAINT leases_pkey PRIMARY KEY (lease_name),
  -- Makes the epoch a key column. So an acquire is a key update, which waits for fenced writers (FOR KEY
  -- SHARE), and a renewal is not.
  CONSTRAINT leases_one_holder_per_epoch UNIQUE (lease_name, lease_epoch),
  CONSTRAINT leases_name_bounded CHECK (length(lease_name) BETWEEN 1 AND 400),
  CONSTRAINT leases_holder_bounded CHECK (length(holder_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_epoch_natural CHECK (lease_epoch >= 0),
  CONSTRAINT leases_grace_after_expiry CHECK (grace_expires_at >= expires_at),
  CONSTRAINT leases_yield_positive CHECK (yield_seconds > 0),
  CONSTRAINT leases_stream_named CHECK (num_nonnulls(target, stream) IN (0, 2)),
  CONSTRAINT leases_paused_from_to CHECK (num_nonnulls(paused_since, paused_until) IN (0, 2))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Streams that are held or that somebody must look at. Free ones are not in it.
CREATE INDEX leases_stream_expiry ON leasehold.leases (target, expires_at)
  WHERE stream IS NOT NULL AND expires_at > '-infinity';

CREATE INDEX leases_paused ON leasehold.leases (target, stream) WHERE paused_since IS NOT NULL;

COMMENT ON TABLE leasehold.leases IS
  'Who holds each lease, under which epoch, and until when on the database''s clock.';
COMMENT ON COLUMN leasehold.leases.lease_epoch IS
  'The fencing token: +1 on every acquire, never on renew. 0: created, not yet held.';
COMMENT ON COLUMN leasehold.leases.grace_expires_at IS
  'End of the second phase of expiry: until then a stream with a call in flight is not taken over.';
COMMENT ON COLUMN leasehold.leases.lease_seconds IS
  'How long the lease was last granted for. An expiry further away is impossible: the clock was set back, and '
  'whoever wants the lease corrects it (repair_lease_times).';
COMMENT ON COLUMN leasehold.leases.grace_seconds IS 'How long the second phase of expiry was granted for.';
COMMENT ON COLUMN leasehold.leases.yield_seconds IS
  'Set if the holder was elected by an advisory lock. This long after its last renewal it begins nothing new, '
  'and whoever has the lock may take the lease before it expires.';
COMMENT ON COLUMN leasehold.leases.paused_until IS
  'Until when nothing of the stream is executed: the latest end of its reasons in stream_pauses; infinity: until a person '
  'resumes it. It is here and not in streams, because no executor may wait for an enqueuer, who locks that row.';

GRANT SELECT ON leasehold.leases
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;

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

-- The last sequence number of each stream. Its row lock makes the order inside a stream the commit order: only
-- enqueuers of the same stream wait for one another. The lock belongs to enqueuers, whose transactions can be long, so no
-- executor waits for it. What executors and operators write about a stream is in its row of leases. Hidden from readers.
CREATE TABLE leasehold.streams (
  target text COLLATE "C" NOT NULL,
  stream text COLLATE "C" NOT NULL,
  last_seq bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

  CONSTRAINT streams_pkey PRIMARY KEY (target, stream)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.streams IS 'Sequence counters of the streams. Deleted when a stream was empty for long.';

-- The numbers from which the streams of a target start. When prune_streams deletes a stream, it raises them to the numbers
-- of that stream, so neither an epoch nor a sequence number goes back if the stream comes back. Hidden from readers.
CREATE TABLE leasehold.stream_floors (
  target text COLLATE "C" NOT NULL,
  lease_epoch bigint NOT NULL DEFAULT 0,
  last_seq bigint NOT NULL DEFAULT 0,

  CONSTRAINT stream_floors_pkey PRIMARY KEY (target)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.stream_floors IS 'The first epoch and sequence number of new streams, by target.';

-- Why a stream stands still: one row for each reason. The stream goes on when the last one has ended. A person has one pause
-- per stream, named after the operator; each failed intent has one, named after the intent, if its contract says block or
-- block_for. leases.paused_until is the latest end, which executors read; both are written under the lock of the lease row.
-- A reason that is over may stay until its stream is claimed, changed or pruned.
CREATE TABLE leasehold.stream_pauses (
  lease_name text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  paused_since timestamptz NOT NULL,
  paused_until timestamptz NOT NULL,
  note text,

  CONSTRAINT stream_pauses_pkey PRIMARY KEY (lease_name, kind, name),
  CONSTRAINT stream_pauses_kind_known CHECK (kind IN ('failure', 'person')),
  CONSTRAINT stream_pauses_note_bounded CHECK (length(note) <= 2000)
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE leasehold.stream_pauses IS 'Why a stream stands still, one row per reason.';
COMMENT ON COLUMN leasehold.stream_pauses.name IS 'kind person: the operator. kind failure: the id of the failed intent.';
COMMENT ON COLUMN leasehold.stream_pauses.paused_until IS 'When the reason ends by itself; infinity: only if a person ends it.';

GRANT SELECT ON leasehold.stream_pauses
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;

-- What people did to streams, one row per intervention. Rows are never changed or deleted. An intervention that ends an
-- intent is on the ledger too.
CREATE TABLE leasehold.stream_interventions (
  intervention_id uuid NOT NULL,
  target text COLLATE "C" NOT NULL,
  stream text COLLATE "C" NOT NULL,
  action text NOT NULL,
  operator text NOT NULL,
  note text NOT NULL,
  intent_id uuid,
  paused_by text,
  done_at timestamptz NOT NULL,

  CONSTRAINT stream_interventions_pkey PRIMARY KEY (intervention_id),
  CONSTRAINT stream_interventions_action_known CHECK (action IN ('pause', 'resume', 'skip'))
);

CREATE INDEX stream_interventions_of_stream ON leasehold.stream_interventions (target, stream, intervention_id);

COMMENT ON TABLE leasehold.stream_interventions IS 'What people did to streams: pause, resume, skip. Append-only.';
COMMENT ON COLUMN leasehold.stream_interventions.intent_id IS
  'The head that was skipped, or the failed intent whose pause was ended.';
COMMENT ON COLUMN leasehold.stream_interventions.paused_by IS 'The person whose pause was ended.';

GRANT SELECT ON leasehold.stream_interventions
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;

-- What people did to intents without ending them or writing to their ledger, one row per intervention. Rows are never changed or
-- deleted. Every other intervention is a row of the ledger.
CREATE TABLE leasehold.intent_interventions (
  intervention_id uuid NOT NULL,
  intent_id uuid NOT NULL,
  action text NOT NULL,
  operator text NOT NULL,
  note text NOT NULL,
  done_at timestamptz NOT NULL,

  CONSTRAINT intent_interventions_pkey PRIMARY KEY (intervention_id),
  CONSTRAINT intent_interventions_action_known CHECK (action IN ('retry_now'))
);

CREATE INDEX intent_interventions_of_intent ON leasehold.intent_interventions (intent_id, intervention_id);

COMMENT ON TABLE leasehold.intent_interventions IS
  'What people did to intents without a ledger row: retry_now. Append-only.';

GRANT SELECT ON leasehold.intent_interventions
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;

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

-- Tokens of the HTTP API. Only their hashes are stored. A row is never deleted and a name is never used
-- twice, because ledger rows name the token that intervened.
CREATE TABLE leasehold.api_tokens (
  name text COLLATE "C" NOT NULL,
  token_hash bytea NOT NULL,
  scopes text[] NOT NULL,
  targets text[],
  created_at timestamptz NOT NULL,
  created_by text NOT NULL,
  revoked_at timestamptz,
  revoked_by text,

  CONSTRAINT api_tokens_pkey PRIMARY KEY (name),
  CONSTRAINT api_tokens_one_per_hash UNIQUE (token_hash),
  CONSTRAINT api_tokens_name_form CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  CONSTRAINT api_tokens_hash_is_sha256 CHECK (octet_length(token_hash) = 32),
  CONSTRAINT api_tokens_scopes_known
    CHECK (scopes <@ ARRAY['ingest', 'read', 'operate', 'audit'] AND cardinality(scopes) > 0),
  -- NULL means all targets; an empty list could be read as none or as all.
  CONSTRAINT api_tokens_targets_named CHECK (cardinality(targets) > 0),
  CONSTRAINT api_tokens_revoked_by_someone CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);

COMMENT ON TABLE leasehold.api_tokens IS
  'Tokens of the HTTP API, hashed. Insert-only, except for the revocation, which is final.';
COMMENT ON COLUMN leasehold.api_tokens.token_hash IS
  'SHA-256 of the whole token. It needs no salt, because a token is 256 random bits.';
COMMENT ON COLUMN leasehold.api_tokens.targets IS 'The targets that the token may access; NULL for all.';

-- Who may count next, and when: one row per kind of count. Many instances watch the queue, and one of them at a time
-- reads it; see begin_watch_turn.
CREATE TABLE leasehold.watch_turns (
  name text COLLATE "C" NOT NULL,
  turn_no bigint NOT NULL DEFAULT 0,
  unfinished_turns integer NOT NULL DEFAULT 0,
  next_at timestamptz NOT NULL DEFAULT '-infinity',
  looked_at timestamptz NOT NULL DEFAULT '-infinity',
  open_ids bigint[] NOT NULL DEFAULT '{}',
  open_since timestamptz[] NOT NULL DEFAULT '{}',
  full_at timestamptz NOT NULL DEFAULT '-infinity',

  CONSTRAINT watch_turns_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.watch_turns IS
  'The turns of the instances that watch the queue. Nothing is decided by it except who counts next, and from where.';
COMMENT ON COLUMN leasehold.watch_turns.unfinished_turns IS
  'Turns in a row that were begun and not finished. Each doubles the pause before the next.';
COMMENT ON COLUMN leasehold.watch_turns.looked_at IS
  'Of depths: when the last turn looked which transactions were open.';
COMMENT ON COLUMN leasehold.watch_turns.open_ids IS 'Of depths: the transactions that were open then.';
COMMENT ON COLUMN leasehold.watch_turns.open_since IS
  'Of depths: for each of them the time of the last look that did not see it. It has written nothing before that.';
COMMENT ON COLUMN leasehold.watch_turns.full_at IS 'Of depths: when everything was last counted from the beginning.';

-- What record_queue_counts found in each segment of outbox_pending when it last read it, by last state and number of
-- attempts. The view supervisor adds the rows up. A segment without pending rows has one row, of zeros.
CREATE TABLE leasehold.queue_counts (
  segment_no integer NOT NULL,
  last_state text COLLATE "C" NOT NULL,
  attempt_count integer NOT NULL,
  pending bigint NOT NULL,
  due bigint NOT NULL,
  leased bigint NOT NULL,
  expired_leases bigint NOT NULL,
  due_unleased bigint NOT NULL,
  held bigint NOT NULL,
  oldest_created_at timestamptz,
  oldest_doubt_at timestamptz,
  segments integer NOT NULL,
  seen_at timestamptz NOT NULL,
  deferred bigint NOT NULL DEFAULT 0,
  oldest_deferred_since timestamptz,

  CONSTRAINT queue_counts_pkey PRIMARY KEY (segment_no, last_state, attempt_count)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.queue_counts IS 'Counts of pending rows per segment of the table; read the view supervisor.';
COMMENT ON COLUMN leasehold.queue_counts.last_state IS 'As in outbox_pending; NEW if the intent was never tried.';
COMMENT ON COLUMN leasehold.queue_counts.segments IS 'How many segments outbox_pending had at that moment.';

-- How many streams of each target wait until a person resumes them, as record_blocked_counts last found. The view supervisor
-- shows it.
CREATE TABLE leasehold.blocked_counts (
  target text COLLATE "C" NOT NULL,
  blocked bigint NOT NULL,
  seen_at timestamptz NOT NULL,

  CONSTRAINT blocked_counts_pkey PRIMARY KEY (target)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.blocked_counts IS 'Counts of paused streams per target; read the view supervisor.';

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

-- The generations of the database. A new one begins when commits may have been lost: after a failover, in a copy, or when an
-- operator says that a backup was restored. The newest row is the current generation. Written by begin_generation,
-- begin_restored_generation and repair_restored_intents.
CREATE TABLE leasehold.generations (
  generation_no bigint NOT NULL,
  token_floor bigint NOT NULL,
  database_identity text NOT NULL,
  cause text NOT NULL,
  began_by text NOT NULL,
  note text NOT NULL,
  began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  walk_to uuid,
  walked_to uuid,
  intents_in_doubt bigint NOT NULL DEFAULT 0,
  ready_at timestamptz,

  CONSTRAINT generations_pkey PRIMARY KEY (generation_no),
  -- Tokens stay below 2^53, which every JSON reader keeps, and the floor is all but a small part of them.
  CONSTRAINT generations_floor_bounded CHECK (token_floor BETWEEN 0 AND 9000000000000000),
  CONSTRAINT generations_cause_known CHECK (cause IN ('created', 'detected', 'restored')),
  CONSTRAINT generations_began_by_bounded CHECK (length(began_by) BETWEEN 1 AND 128),
  CONSTRAINT generations_note_bounded CHECK (length(note) BETWEEN 1 AND 2000),
  CONSTRAINT generations_waits_only_when_restored CHECK (ready_at IS NOT NULL OR cause = 'restored')
);

COMMENT ON TABLE leasehold.generations IS
  'One row for each time that commits may have been lost; the newest is the current generation. Rows are never deleted.';
COMMENT ON COLUMN leasehold.generations.token_floor IS
  'Part of every fencing token (fencing_token). It only rises, so no token repeats an earlier one, also one that was lost.';
COMMENT ON COLUMN leasehold.generations.database_identity IS
  'What read_database_identity returned when the generation began. Leases are granted only while it still does.';
COMMENT ON COLUMN leasehold.generations.walk_to IS
  'Of a restore: the last intent that may have been sent by the lost database.';
COMMENT ON COLUMN leasehold.generations.walked_to IS 'Of a restore: how far repair_restored_intents has come.';
COMMENT ON COLUMN leasehold.generations.ready_at IS
  'Since when leases are granted. NULL: a restore is being repaired, and nothing is granted before its end.';

GRANT SELECT ON leasehold.generations
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
