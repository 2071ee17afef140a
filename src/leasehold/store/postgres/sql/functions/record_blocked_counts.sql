-- Count the streams of each target that are paused until a person resumes them, for the view supervisor. A part of a turn of
-- record_queue_counts. It begins with the target that was not counted for longest, looks at 20,000 paused streams of a target at
-- most, and stops after 50,000; the next turn goes on. A target is not counted again within nine seconds.
-- Locks: the rows in blocked_counts. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.record_blocked_counts(p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  c_rows CONSTANT bigint := 50000;
  c_rows_of_target CONSTANT bigint := 20000;
  v_target text COLLATE "C";
  v_rows bigint := 0;
  v_seen bigint;
  v_blocked bigint;
BEGIN
  FOR v_target IN
    SELECT f.target FROM leasehold.stream_floors f LEFT JOIN leasehold.blocked_counts b ON b.target = f.target
     -- A time in the future was written before the clock was set back.
     WHERE b.seen_at IS NULL OR b.seen_at NOT BETWEEN p_now - interval '9 seconds' AND p_now
     ORDER BY b.seen_at NULLS FIRST, f.target LIMIT 1000
  LOOP
    SELECT count(*), count(*) FILTER (WHERE paused.paused_until = 'infinity') INTO v_seen, v_blocked
      FROM (SELECT l.paused_until FROM leasehold.leases l
             WHERE l.target = v_target AND l.paused_since IS NOT NULL LIMIT c_rows_of_target) AS paused;
    INSERT INTO leasehold.blocked_counts (target, blocked, seen_at) VALUES (v_target, v_blocked, p_now)
    ON CONFLICT (target) DO UPDATE SET blocked = excluded.blocked, seen_at = excluded.seen_at;
    v_rows := v_rows + v_seen + 1;
    EXIT WHEN v_rows >= c_rows;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_blocked_counts(timestamptz) FROM PUBLIC;
