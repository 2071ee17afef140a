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
