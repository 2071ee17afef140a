-- Who may count next, and when: one row per kind of count. Many instances watch the queue, and one of them at a time
-- reads it; see begin_watch_turn.
CREATE TABLE leasehold.watch_turns (
  name text COLLATE "C" NOT NULL,
  turn_no bigint NOT NULL DEFAULT 0,
  unfinished_turns integer NOT NULL DEFAULT 0,
  next_at timestamptz NOT NULL DEFAULT '-infinity',
  looked_at timestamptz NOT NULL DEFAULT '-infinity',
  open_ids bigint[] NOT NULL DEFAULT '{}',
  open_since timestamptz[] NOT NULL DEFAULT '{}',
  full_at timestamptz NOT NULL DEFAULT '-infinity',

  CONSTRAINT watch_turns_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50);

COMMENT ON TABLE leasehold.watch_turns IS
  'The turns of the instances that watch the queue. Nothing is decided by it except who counts next, and from where.';
COMMENT ON COLUMN leasehold.watch_turns.unfinished_turns IS
  'Turns in a row that were begun and not finished. Each doubles the pause before the next.';
COMMENT ON COLUMN leasehold.watch_turns.looked_at IS
  'Of depths: when the last turn looked which transactions were open.';
COMMENT ON COLUMN leasehold.watch_turns.open_ids IS 'Of depths: the transactions that were open then.';
COMMENT ON COLUMN leasehold.watch_turns.open_since IS
  'Of depths: for each of them the time of the last look that did not see it. It has written nothing before that.';
COMMENT ON COLUMN leasehold.watch_turns.full_at IS 'Of depths: when everything was last counted from the beginning.';
