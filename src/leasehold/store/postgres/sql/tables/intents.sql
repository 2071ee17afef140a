-- What was accepted, as it was accepted. Insert-only; only retention removes rows.
-- Deliberately without foreign keys: every enqueue would lock the one contract row of its target,
-- and the functions, the only writers, keep the references.
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

  CONSTRAINT intents_pkey PRIMARY KEY (intent_id),
  -- Its rules, each with a name, are in functions/is_sound_intent.sql.
  CONSTRAINT intents_are_sound CHECK (
    leasehold.is_sound_intent(payload, body, content_type, idempotency_key, stream, payload_hash))
);

CREATE UNIQUE INDEX intents_one_per_key ON leasehold.intents (target, idempotency_key)
  WHERE idempotency_key IS NOT NULL;

CREATE UNIQUE INDEX intents_one_per_key_of_all_targets ON leasehold.intents (idempotency_key)
  WHERE is_key_of_all_targets;

CREATE UNIQUE INDEX intents_one_redrive_per_intent ON leasehold.intents (redrive_of)
  WHERE redrive_of IS NOT NULL;

COMMENT ON TABLE leasehold.intents IS 'Accepted intents, immutable.';
COMMENT ON COLUMN leasehold.intents.is_key_of_all_targets IS
  'True where the key was given for whatever target (key_scope all), as by the HTTP API: then another '
  'such intent cannot have it, whichever target it is for.';
COMMENT ON COLUMN leasehold.intents.submission_key IS
  'The idempotency key that the gateway sees, the same on every try: the intent id, or that of the '
  'intent it redrives where that one''s effect is not known to be absent.';
COMMENT ON COLUMN leasehold.intents.payload_hash IS
  'SHA-256 of the normal form (jsonb text, or content type and body), so that key order is no conflict; '
  'NULL where no idempotency key was given, so that nobody can repeat it';

-- Readers see everything but the content; the auditor sees the content too.
GRANT SELECT (
  intent_id, target, contract_version, stream, stream_seq, idempotency_key, is_key_of_all_targets,
  submission_key, content_type, payload_hash, metadata, trace_context, created_at, deadline_at, redrive_of
) ON leasehold.intents TO leasehold_executor, leasehold_operator, leasehold_readonly;
GRANT SELECT ON leasehold.intents TO leasehold_auditor;
