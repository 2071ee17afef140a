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
