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
