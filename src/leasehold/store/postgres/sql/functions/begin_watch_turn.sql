-- Begin a turn of counting if one is due, and return its number; NULL if it is not due yet. Commit before you count:
-- then no instance begins another turn before the pause is over, even if the count fails. Each turn in a row that was
-- not finished doubles the pause, from 10 seconds to 10 minutes. p_name is counts (then call record_queue_counts) or
-- depths (then call record_queue_depths).
-- Locks: the row of the turn; it never waits for it. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.begin_watch_turn(p_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_turn leasehold.watch_turns;
BEGIN
  IF p_name IS NULL OR p_name NOT IN ('counts', 'depths') THEN
    RAISE EXCEPTION 'p_name is %, but must be counts or depths', coalesce(quote_literal(left(p_name, 80)), 'NULL')
      USING ERRCODE = '22023';
  END IF;
  -- Most calls come too early: they read one row and write nothing. A time further away than the longest pause was
  -- written before the clock was set back.
  SELECT * INTO v_turn FROM leasehold.watch_turns WHERE name = p_name;
  IF NOT FOUND THEN
    INSERT INTO leasehold.watch_turns (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  ELSIF v_turn.next_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '10 minutes' THEN
    RETURN NULL;
  END IF;
  SELECT * INTO v_turn FROM leasehold.watch_turns WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR v_turn.next_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '10 minutes' THEN
    RETURN NULL;
  END IF;
  UPDATE leasehold.watch_turns
     SET turn_no = v_turn.turn_no + 1, unfinished_turns = v_turn.unfinished_turns + 1,
         next_at = clock_timestamp()
                   + make_interval(secs => least(600, 10 * 2.0 ^ least(v_turn.unfinished_turns, 10)))
   WHERE name = p_name;
  RETURN v_turn.turn_no + 1;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_watch_turn(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_watch_turn(text)
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
