-- Count the unfinished intents of the targets whose contract limits them (pending_max), each up to its limit, and return
-- the seconds until the next turn; NULL, without reading anything, if the turn is not the current one. It begins with
-- the target that was not counted for longest and stops after 50,000 rows; the next turn goes on. One target is always
-- counted as a whole, so a turn reads at most 50,000 rows more than the largest limit. The pause is a second for every
-- 50,000 rows, from a tenth of a second to 30 seconds, and at least 20 times what the turn took: the cost does not grow
-- with the number of instances or targets. The limits themselves are read from the contracts every 5 seconds.
-- Locks: the row of the turn; it never waits for it. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.record_queue_depths(p_turn_no bigint) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_rows CONSTANT bigint := 50000;
  v_began_at timestamptz;
  v_queue leasehold.queue_depths;
  v_seen_at timestamptz;
  v_depth bigint;
  v_rows bigint := 0;
  v_pause_seconds double precision := 5;
BEGIN
  IF p_turn_no IS NULL OR p_turn_no NOT BETWEEN 1 AND 1000000000000000 THEN
    RAISE EXCEPTION 'p_turn_no is %, but must be what begin_watch_turn returned; it returns NULL if no turn is due yet',
      coalesce(p_turn_no::text, 'NULL') USING ERRCODE = '22023';
  END IF;
  PERFORM FROM leasehold.watch_turns
    WHERE name = 'depths' AND turn_no = p_turn_no AND unfinished_turns > 0 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  v_began_at := clock_timestamp();
  IF NOT EXISTS (SELECT FROM leasehold.queue_depths
                  WHERE limit_read_at BETWEEN v_began_at - interval '5 seconds' AND v_began_at) THEN
    INSERT INTO leasehold.queue_depths AS d (target, pending_max, limit_read_at)
    SELECT c.target, (c.terms ->> 'pending_max')::numeric::integer, v_began_at
      FROM leasehold.contracts c
     WHERE CASE WHEN jsonb_typeof(c.terms -> 'pending_max') = 'number'
                THEN (c.terms ->> 'pending_max')::numeric BETWEEN 1 AND 1000000 END
       AND NOT EXISTS (SELECT FROM leasehold.contracts newer WHERE newer.target = c.target AND newer.version > c.version)
    ON CONFLICT (target) DO UPDATE
      SET limit_read_at = excluded.limit_read_at, pending_max = excluded.pending_max,
          -- A count that ended at the old limit says nothing about a higher one.
          seen_at = CASE WHEN d.pending_max < excluded.pending_max THEN '-infinity' ELSE d.seen_at END;
    DELETE FROM leasehold.queue_depths WHERE limit_read_at <> v_began_at;
  END IF;

  FOR v_queue IN SELECT * FROM leasehold.queue_depths ORDER BY seen_at, target LOOP
    v_seen_at := clock_timestamp();
    v_depth := leasehold.queue_depth(v_queue.target, v_queue.pending_max);
    UPDATE leasehold.queue_depths SET depth = v_depth, seen_at = v_seen_at WHERE target = v_queue.target;
    v_rows := v_rows + v_depth + 1;
    EXIT WHEN v_rows >= c_rows;
  END LOOP;

  IF v_rows > 0 THEN
    v_pause_seconds := least(30, greatest(0.1, v_rows::double precision / c_rows));
  END IF;
  v_pause_seconds := least(600, greatest(
    v_pause_seconds, 20 * extract(epoch FROM clock_timestamp() - v_began_at)::double precision));
  UPDATE leasehold.watch_turns
     SET unfinished_turns = 0, next_at = clock_timestamp() + make_interval(secs => v_pause_seconds)
   WHERE name = 'depths';
  RETURN v_pause_seconds;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_queue_depths(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_queue_depths(bigint)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
