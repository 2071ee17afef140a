-- Claim streams whose head is due, up to p_streams_max, each with epoch + 1, and return their heads with content; see
-- advance_streams for the columns. An instance claims as many streams as it can start calls. Streams that turn out to have
-- nothing due are freed again at once (is_held is false); a stream in the state recheck stays held.
-- Every target has a share, and the other targets get what one does not use (share_batch). p_target_limits bounds the streams of each
-- target. Each target is walked by priority and due time of the heads, and only heads that somebody may claim are in that
-- index: streams that are held, paused, blocked or not due cost nothing.
-- p_due_from says where each walk starts, four entries (one per priority) for each target in turn, as in claim_outbox_batch.
-- Leave it out about once a second: then the walk is complete, and streams of dead holders are taken over too.
-- A stream has two expiries. Before the first it belongs to its holder; between the two it may be taken if no call is in
-- flight; after the second always. A call in flight is then put in doubt. A stream that this holder has already is not
-- returned: the holder may be asking about some of its rows, which leaves no mark. is_taken_over: the stream
-- had another holder.
-- A stream whose head somebody has locked is passed over, as items are in claim_outbox_batch. If it is another row of the
-- stream that somebody has locked, or the stream had another holder, its state may be recheck.
-- Locks: the lease rows FOR UPDATE and the heads FOR NO KEY UPDATE, SKIP LOCKED, so it never waits. Reads the clock after
-- that. Then as advance_streams.
-- Raises: P7006; 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.claim_streams(
  p_streams_max integer, p_holder_id text, p_lease_seconds double precision, p_grace_seconds double precision,
  p_targets text[], p_target_limits integer[] DEFAULT NULL, p_due_from timestamptz[] DEFAULT NULL,
  p_begin boolean DEFAULT false
) RETURNS SETOF leasehold.stream_work
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_first_seat integer := floor(random() * cardinality(p_targets));
  v_limits integer[] := p_target_limits;
  v_expired text[] := '{}';
  v_taken_over text[];
  v_work leasehold.stream_work;
  v_names text[] := '{}';
  v_rows uuid[] := '{}';
  v_found_names text[];
  v_found_rows uuid[];
  v_left integer := p_streams_max;
  v_token_floor bigint;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_between('p_streams_max', p_streams_max, 1, 10000);
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 86400);
  PERFORM leasehold.require_between('p_grace_seconds', p_grace_seconds, 0, 86400);
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  PERFORM leasehold.require_walk(p_targets, p_target_limits, p_due_from);
  IF p_begin IS NULL THEN
    RAISE EXCEPTION 'p_begin is NULL, but must be true or false' USING ERRCODE = '22023';
  END IF;

  v_token_floor := leasehold.require_generation();

  IF p_due_from IS NULL THEN
    v_expired := leasehold.lock_expired_streams(p_targets, p_target_limits, p_streams_max, p_lease_seconds);
    v_names := v_expired;
    v_left := p_streams_max - cardinality(v_expired);
  END IF;
  IF cardinality(v_expired) > 0 THEN
    v_limits := ARRAY(
      SELECT greatest(coalesce(asked.target_limit, p_streams_max) - count(l.lease_name), 0)::integer
        FROM unnest(p_targets, p_target_limits) WITH ORDINALITY AS asked (target, target_limit, place)
        LEFT JOIN leasehold.leases l ON l.lease_name = ANY (v_expired) AND l.target = asked.target
       GROUP BY asked.place, asked.target_limit ORDER BY asked.place);
  END IF;
  FOR v_pass IN 1..2 LOOP
    EXIT WHEN v_left <= 0;
    WITH picked AS MATERIALIZED (
      SELECT due.lease_name, due.intent_id
        FROM leasehold.share_batch(p_streams_max, p_targets, v_limits, v_first_seat, v_pass) AS shared
       CROSS JOIN LATERAL (
         SELECT level_due.lease_name, level_due.intent_id
           FROM generate_series(0, 3) AS level
          CROSS JOIN LATERAL (
            SELECT l.lease_name, p.intent_id
              FROM leasehold.outbox_pending p JOIN leasehold.leases l ON l.lease_name = p.lease_name
             WHERE p.scope = 'stream' AND p.is_claimable AND p.target = shared.target AND p.priority = level::smallint
               AND p.due_at >= coalesce(p_due_from[(shared.place - 1) * 4 + level + 1], '-infinity')
               AND p.due_at <= v_now AND p.intent_id <> ALL (v_rows)
               AND l.expires_at <= v_now
             ORDER BY p.due_at, p.intent_id
             LIMIT shared.rows_max
               FOR UPDATE OF l SKIP LOCKED FOR NO KEY UPDATE OF p SKIP LOCKED) AS level_due
          LIMIT shared.rows_max) AS due
       LIMIT v_left
    )
    SELECT coalesce(array_agg(picked.lease_name), '{}'), coalesce(array_agg(picked.intent_id), '{}')
      INTO v_found_names, v_found_rows FROM picked;
    v_names := v_names || v_found_names;
    v_rows := v_rows || v_found_rows;
    v_left := v_left - cardinality(v_found_rows);
    -- A target with more than its share has used up at least its share.
    EXIT WHEN cardinality(v_found_rows) < p_streams_max / greatest(cardinality(p_targets), 1);
  END LOOP;
  IF cardinality(v_names) = 0 THEN
    RETURN;
  END IF;

  IF cardinality(v_expired) > 0 THEN
    -- Without streams that their holder freed (lease_seconds is 0) while an enqueuer was open.
    v_taken_over := ARRAY(SELECT l.lease_name FROM leasehold.leases l
                           WHERE l.lease_name = ANY (v_expired) AND l.lease_seconds > 0 AND l.holder_id <> p_holder_id);
  END IF;
  v_names := leasehold.take_streams(v_names, v_rows, p_holder_id, p_lease_seconds, p_grace_seconds);
  IF cardinality(v_taken_over) > 0 THEN
    FOR v_work IN
      SELECT * FROM leasehold.advance_streams(v_names, NULL, true, p_begin, v_token_floor)
    LOOP
      IF v_work.lease_name = ANY (v_taken_over) THEN
        v_work.is_taken_over := true;
      END IF;
      RETURN NEXT v_work;
    END LOOP;
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM leasehold.advance_streams(v_names, NULL, true, p_begin, v_token_floor);
END
$$;
REVOKE ALL ON FUNCTION leasehold.claim_streams(
  integer, text, double precision, double precision, text[], integer[], timestamptz[], boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.claim_streams(
  integer, text, double precision, double precision, text[], integer[], timestamptz[], boolean) TO leasehold_executor;
