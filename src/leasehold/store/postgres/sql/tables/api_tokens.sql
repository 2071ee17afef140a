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
