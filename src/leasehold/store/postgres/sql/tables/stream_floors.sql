-- The numbers from which the streams of a target start. When prune_streams deletes a stream, it raises them to the numbers
-- of that stream, so neither an epoch nor a sequence number goes back if the stream comes back. Hidden from readers.
CREATE TABLE leasehold.stream_floors (
  target text COLLATE "C" NOT NULL,
  lease_epoch bigint NOT NULL DEFAULT 0,
  last_seq bigint NOT NULL DEFAULT 0,

  CONSTRAINT stream_floors_pkey PRIMARY KEY (target)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.stream_floors IS 'The first epoch and sequence number of new streams, by target.';
