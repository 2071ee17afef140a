-- Signed transactions, stored before they are broadcast. The binding of a nonce to its intent and its signed
-- bytes is permanent (a trigger refuses changes), so a restart re-sends the same bytes.
CREATE TABLE leasehold.pending_transactions (
  chain text COLLATE "C" NOT NULL,
  account text COLLATE "C" NOT NULL,
  nonce bigint NOT NULL,
  intent_id uuid,
  transaction_hash bytea NOT NULL,
  signed_bytes bytea NOT NULL,
  state text NOT NULL,
  block_hash bytea,
  creator_id text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),

  CONSTRAINT pending_transactions_pkey PRIMARY KEY (chain, account, nonce),
  CONSTRAINT pending_transactions_nonce_natural CHECK (nonce >= 0),
  CONSTRAINT pending_transactions_state_known CHECK (
    state IN ('signed', 'broadcast', 'in_block', 'retracted', 'finalized', 'dropped', 'invalid')
  ),
  CONSTRAINT pending_transactions_bytes_bounded CHECK (octet_length(signed_bytes) <= 1048576)
);

-- An intent has one transaction; a gap filler has no intent.
CREATE UNIQUE INDEX pending_transactions_one_per_intent ON leasehold.pending_transactions (intent_id)
  WHERE intent_id IS NOT NULL;
CREATE INDEX pending_transactions_hash ON leasehold.pending_transactions (transaction_hash);

COMMENT ON TABLE leasehold.pending_transactions IS
  'Signed chain transactions by nonce. A gap filler has no intent.';

GRANT SELECT (chain, account, nonce, intent_id, transaction_hash, state, block_hash, creator_id, created_at, updated_at)
  ON leasehold.pending_transactions
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
