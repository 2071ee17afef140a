-- Count one segment of outbox_pending (2,048 pages) in one scan, store what was found for the view supervisor, and
-- return the seconds until the next turn; NULL, without reading anything, if the turn is not the current one. Each turn
-- reads the segment that was not read for longest. A table of one segment is counted every 10 seconds; a larger one
-- takes one turn per segment, up to one a second, so its sum has parts of different moments. The pause is at least
-- 20 times what the turn took, so the count uses a twentieth of the time at most, however slow the server is.
-- When the oldest doubt began is read from the ledger, for at most 1,000 doubts of the segment. Paused streams are counted
-- too, see record_blocked_counts.
-- Of a stream only what somebody can work on is due: a row that leads a claim to its stream (is_claimable), and a call in flight
-- (begun_at), which counts as leased. So rows behind a head, and heads of streams that are paused or held, are not due. A
-- question about an intent leaves no mark: while its holder asks, the row is neither due nor leased.
-- Locks: the row of the turn; it never waits for it. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.record_queue_counts(p_turn_no bigint) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  c_pages CONSTANT bigint := 2048;
  v_began_at timestamptz;
  v_segments integer;
  v_segment integer;
  v_first tid;
  v_end tid;
  v_pause_seconds double precision;
BEGIN
  IF p_turn_no IS NULL OR p_turn_no NOT BETWEEN 1 AND 1000000000000000 THEN
    RAISE EXCEPTION 'p_turn_no is %, but must be what begin_watch_turn returned; it returns NULL if no turn is due yet',
      coalesce(p_turn_no::text, 'NULL') USING ERRCODE = '22023';
  END IF;
  PERFORM FROM leasehold.watch_turns
    WHERE name = 'counts' AND turn_no = p_turn_no AND unfinished_turns > 0 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  v_began_at := clock_timestamp();
  v_segments := greatest(1, ceil(
    pg_relation_size('leasehold.outbox_pending') / (c_pages * current_setting('block_size')::numeric)));
  SELECT every.segment_no INTO v_segment
    FROM generate_series(0, v_segments - 1) AS every (segment_no)
    LEFT JOIN (SELECT c.segment_no, min(c.seen_at) AS seen_at FROM leasehold.queue_counts c GROUP BY 1) AS seen
      USING (segment_no)
   ORDER BY seen.seen_at NULLS FIRST, every.segment_no LIMIT 1;
  v_first := format('(%s,0)', v_segment * c_pages);
  v_end := format('(%s,0)', (v_segment + 1) * c_pages);

  DELETE FROM leasehold.queue_counts WHERE segment_no = v_segment OR segment_no >= v_segments;
  INSERT INTO leasehold.queue_counts (
    segment_no, last_state, attempt_count, pending, due, leased, expired_leases, due_unleased, held, oldest_created_at,
    segments, seen_at, deferred, oldest_deferred_since)
  SELECT v_segment, coalesce(found.last_state, 'NEW'), found.attempt_count, found.pending, found.due, found.leased,
         found.expired_leases, found.due_unleased, found.held, leasehold.intent_accepted_at(found.first_ids[1]),
         v_segments, v_began_at, found.deferred, found.oldest_deferred_since
    FROM (SELECT p.last_state, p.attempt_count, count(*) AS pending,
                 count(*) FILTER (WHERE p.due_at <= v_began_at
                                    AND (p.scope <> 'stream' OR p.is_claimable OR p.begun_at IS NOT NULL)) AS due,
                 count(*) FILTER (WHERE p.claimed_by IS NOT NULL OR p.scope = 'stream' AND p.begun_at IS NOT NULL) AS leased,
                 count(*) FILTER (WHERE p.lease_expires_at <= v_began_at) AS expired_leases,
                 count(*) FILTER (WHERE p.due_at <= v_began_at AND p.claimed_by IS NULL
                                    AND (p.scope <> 'stream' OR p.is_claimable AND p.begun_at IS NULL)) AS due_unleased,
                 count(*) FILTER (WHERE p.due_at = 'infinity') AS held,
                 count(p.deferred_since) AS deferred, min(p.deferred_since) AS oldest_deferred_since,
                 -- Ids are in order of acceptance. Before PostgreSQL 18 there is a minimum of arrays, but not of ids.
                 min(ARRAY[p.intent_id]) AS first_ids
            FROM leasehold.outbox_pending p
           WHERE p.ctid >= v_first AND p.ctid < v_end
           GROUP BY 1, 2) AS found;
  INSERT INTO leasehold.queue_counts (
    segment_no, last_state, attempt_count, pending, due, leased, expired_leases, due_unleased, held, segments, seen_at)
  VALUES (v_segment, 'NEW', 0, 0, 0, 0, 0, 0, 0, v_segments, v_began_at)
  ON CONFLICT DO NOTHING;

  IF EXISTS (SELECT FROM leasehold.queue_counts
              WHERE segment_no = v_segment AND last_state = 'IN_DOUBT' AND pending > held) THEN
    UPDATE leasehold.queue_counts c
       SET oldest_doubt_at = (
         SELECT min(began.at)
           FROM (SELECT p.intent_id FROM leasehold.outbox_pending p
                  WHERE p.ctid >= v_first AND p.ctid < v_end AND p.last_state = 'IN_DOUBT' AND p.due_at < 'infinity'
                  LIMIT 1000) AS doubted
          CROSS JOIN LATERAL (
            -- The doubt begins with the first IN_DOUBT row after the last row of another state.
            SELECT min(a.finished_at) AS at FROM leasehold.outbox_attempts a
             WHERE a.intent_id = doubted.intent_id
               AND a.attempt_no > coalesce((SELECT max(other.attempt_no) FROM leasehold.outbox_attempts other
                                             WHERE other.intent_id = doubted.intent_id AND other.state <> 'IN_DOUBT'), 0)
          ) AS began)
     WHERE c.segment_no = v_segment AND c.last_state = 'IN_DOUBT';
  END IF;

  PERFORM leasehold.record_blocked_counts(v_began_at);

  v_pause_seconds := least(600, greatest(
    10.0 / v_segments, 1, 20 * extract(epoch FROM clock_timestamp() - v_began_at)::double precision));
  UPDATE leasehold.watch_turns
     SET unfinished_turns = 0, next_at = clock_timestamp() + make_interval(secs => v_pause_seconds)
   WHERE name = 'counts';
  RETURN v_pause_seconds;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_queue_counts(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_queue_counts(bigint)
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
