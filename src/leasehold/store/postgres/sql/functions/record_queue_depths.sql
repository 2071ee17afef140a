-- Count the unfinished intents of the targets whose contract limits them (pending_max), each up to its limit, and return
-- the seconds until the next turn; NULL, without reading anything, if the turn is not the current one. It begins with
-- the target that was not counted for longest and stops after 50,000 rows; the next turn goes on. One target is always
-- counted as a whole, so a turn reads at most 50,000 rows more than the largest limit. The pause is a second for every
-- 50,000 rows, from a tenth of a second to 30 seconds, and at least 20 times what the turn took: the cost does not grow
-- with the number of instances or targets. The limits themselves are read from the contracts every 5 seconds.
-- A count starts at low-water marks, where the live rows began when the target was last counted, so it does not pass over
-- dead rows. Nothing becomes pending with a due time in the past, but rows become visible late. So each turn looks which
-- transactions have ended since the last one, and moves the marks back to when the oldest of them began. Once a minute,
-- and when the clock was set back, everything is counted from the beginning.
-- Locks: the row of the turn; it never waits for it. Raises: 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.record_queue_depths(p_turn_no bigint) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_rows CONSTANT bigint := 50000;
  v_turn leasehold.watch_turns;
  v_look record;
  v_changed_from timestamptz;
  v_queue leasehold.queue_depths;
  v_rows bigint := 0;
  v_pause_seconds double precision := 5;
BEGIN
  PERFORM leasehold.require_read_committed();
  IF p_turn_no IS NULL OR p_turn_no NOT BETWEEN 1 AND 1000000000000000 THEN
    RAISE EXCEPTION 'p_turn_no is %, but must be what begin_watch_turn returned; it returns NULL if no turn is due yet',
      coalesce(p_turn_no::text, 'NULL') USING ERRCODE = '22023';
  END IF;
  SELECT * INTO v_turn FROM leasehold.watch_turns
   WHERE name = 'depths' AND turn_no = p_turn_no AND unfinished_turns > 0 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  v_look := leasehold.read_open_transactions();
  IF NOT EXISTS (SELECT FROM leasehold.queue_depths
                  WHERE limit_read_at BETWEEN v_look.seen_at - interval '5 seconds' AND v_look.seen_at) THEN
    INSERT INTO leasehold.queue_depths AS d (target, pending_max, limit_read_at)
    SELECT c.target, (c.terms ->> 'pending_max')::numeric::integer, v_look.seen_at
      FROM leasehold.contracts c
     WHERE CASE WHEN jsonb_typeof(c.terms -> 'pending_max') = 'number'
                THEN (c.terms ->> 'pending_max')::numeric BETWEEN 1 AND 1000000 END
       AND NOT EXISTS (SELECT FROM leasehold.contracts newer WHERE newer.target = c.target AND newer.version > c.version)
    ON CONFLICT (target) DO UPDATE
      SET limit_read_at = excluded.limit_read_at, pending_max = excluded.pending_max,
          -- A count that ended at the old limit says nothing about a higher one.
          seen_at = CASE WHEN d.pending_max < excluded.pending_max THEN '-infinity' ELSE d.seen_at END;
    DELETE FROM leasehold.queue_depths WHERE limit_read_at <> v_look.seen_at;
  END IF;

  IF v_look.seen_at < v_turn.looked_at THEN  -- the clock was set back
    v_turn.looked_at := '-infinity';
    v_turn.open_ids := '{}';
    v_turn.open_since := '{}';
  END IF;
  -- Transactions that began and ended since the last look took their ids after it.
  SELECT least(v_turn.looked_at, min(known.since)) INTO v_changed_from
    FROM unnest(v_turn.open_ids, v_turn.open_since) AS known (id, since) WHERE known.id <> ALL (v_look.transaction_ids);
  IF v_changed_from = '-infinity' OR v_look.seen_at >= v_turn.full_at + interval '1 minute' THEN
    v_changed_from := '-infinity';
    v_turn.full_at := v_look.seen_at;
  END IF;
  UPDATE leasehold.queue_depths
     SET due_from = ARRAY(SELECT least(start.due_from, v_changed_from)
                            FROM unnest(due_from) WITH ORDINALITY AS start (due_from, place) ORDER BY start.place)
   WHERE v_changed_from < ANY (due_from);
  SELECT coalesce(array_agg(seen.id), '{}'), coalesce(array_agg(coalesce(known.since, v_turn.looked_at)), '{}')
    INTO v_turn.open_ids, v_turn.open_since
    FROM unnest(v_look.transaction_ids) AS seen (id)
    LEFT JOIN unnest(v_turn.open_ids, v_turn.open_since) AS known (id, since) USING (id);

  FOR v_queue IN SELECT * FROM leasehold.queue_depths ORDER BY seen_at, target LOOP
    SELECT * INTO v_queue.depth, v_queue.due_from
      FROM leasehold.queue_depth(v_queue.target, v_queue.pending_max, v_queue.due_from, v_look.seen_at);
    -- The time of the look, for a transaction that it saw may have ended since.
    UPDATE leasehold.queue_depths SET depth = v_queue.depth, due_from = v_queue.due_from, seen_at = v_look.seen_at
     WHERE target = v_queue.target;
    v_rows := v_rows + v_queue.depth + 1;
    EXIT WHEN v_rows >= c_rows;
  END LOOP;

  IF v_rows > 0 THEN
    v_pause_seconds := least(30, greatest(0.1, v_rows::double precision / c_rows));
  END IF;
  v_pause_seconds := least(600, greatest(
    v_pause_seconds, 20 * extract(epoch FROM clock_timestamp() - v_look.seen_at)::double precision));
  UPDATE leasehold.watch_turns
     SET unfinished_turns = 0, next_at = clock_timestamp() + make_interval(secs => v_pause_seconds),
         looked_at = v_look.seen_at, open_ids = v_turn.open_ids, open_since = v_turn.open_since, full_at = v_turn.full_at
   WHERE name = 'depths';
  RETURN v_pause_seconds;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_queue_depths(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_queue_depths(bigint)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
