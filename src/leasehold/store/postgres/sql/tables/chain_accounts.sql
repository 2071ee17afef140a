-- The next nonce of each account on each chain. It is allocated under the lock of this row.
CREATE TABLE leasehold.chain_accounts (
  chain text COLLATE "C" NOT NULL,
  account text COLLATE "C" NOT NULL,
  next_nonce bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

  CONSTRAINT chain_accounts_pkey PRIMARY KEY (chain, account),
  CONSTRAINT chain_accounts_nonce_natural CHECK (next_nonce >= 0)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.chain_accounts IS 'Nonce counters of chain accounts.';
