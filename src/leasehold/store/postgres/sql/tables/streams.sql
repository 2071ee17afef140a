-- The last number given out in each stream. Its row lock makes order inside a stream commit order:
-- only enqueuers of the same stream wait for one another. Hidden from readers.
CREATE TABLE leasehold.streams (
  target text COLLATE "C" NOT NULL,
  stream text COLLATE "C" NOT NULL,
  last_seq bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),

  CONSTRAINT streams_pkey PRIMARY KEY (target, stream)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.streams IS 'Sequence counters of the streams; never deleted from.';
