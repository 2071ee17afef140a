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
