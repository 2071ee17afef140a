-- Record the results of calls in streams that this holder has, in one statement for many streams, and return what can be
-- done next in each stream, as claim_streams does. So a busy stream costs one visit per item.
-- The results are those of complete_outbox_attempts without tokens. Report the items of a batch together. A result that is not
-- of a call that was begun needs its attempt_no.
-- p_continued are the leases that the caller wants to keep; the others are freed after the results are written. NULL: all of them.
-- With p_free_idle, streams without due work are freed too; with p_begin, the next heads are begun.
-- Returns first one row per result, without work, with its verdict: applied, lease_lost, superseded, ceiling_reached, already_terminal,
-- not_found (also if none of these leases covers the item), locked (another transaction has a row of this stream: nothing is
-- done in the stream, report its results again a moment later). Then the work of the streams, in rows without a result;
-- a lost stream has the state lease_lost, and a stream that was passed over has none.
-- A terminal failure pauses the stream if its contract says so; see pause_failed_streams.
-- Locks: the lease rows FOR NO KEY UPDATE, by name; then the pending rows by id, SKIP LOCKED. Reads the clock after each. Then as
-- advance_streams.
-- The results are written whatever the generation of the database is. If it must begin anew (require_generation), no stream is
-- kept and nothing is begun.
-- Raises, and writes nothing: P7003 and 22023 as complete_outbox_attempts.
CREATE OR REPLACE FUNCTION leasehold.record_stream_attempts(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_results jsonb, p_continued text[] DEFAULT NULL,
  p_free_idle boolean DEFAULT true, p_begin boolean DEFAULT false
) RETURNS TABLE (result leasehold.stream_result, work leasehold.stream_work)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_outcomes leasehold.outcome[];
  v_held text[];
  v_locked uuid[];
  v_passed_over text[] := '{}';
  v_now timestamptz;
  v_failed uuid[] := '{}';
  v_reasons text[] := '{}';
  v_token_floor bigint := leasehold.current_token_floor();
BEGIN
  IF num_nulls(p_free_idle, p_begin) > 0 THEN
    RAISE EXCEPTION 'p_free_idle and p_begin must be true or false' USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_list('p_continued', coalesce(p_continued, '{}'), 10000);
  v_outcomes := leasehold.read_results(p_results, p_holder_id, NULL, NULL);
  v_held := leasehold.lock_held_streams(p_holder_id, p_lease_names, p_lease_epochs, p_to_begin => false);
  v_locked := leasehold.lock_pending_rows(v_outcomes);
  v_now := clock_timestamp();
  IF v_locked <> '{}' THEN
    v_passed_over := ARRAY(SELECT DISTINCT p.lease_name FROM leasehold.outbox_pending p
                            WHERE p.intent_id = ANY (v_locked) AND p.lease_name = ANY (v_held));
    v_held := ARRAY(SELECT held FROM unnest(v_held) AS held WHERE held <> ALL (v_passed_over));
  END IF;

  FOR result.intent_id, result.verdict IN
    SELECT o.intent_id, CASE WHEN p.intent_id IS NULL THEN leasehold.missing_verdict(o.intent_id)
                             WHEN p.lease_name = ANY (v_passed_over) THEN 'locked'
                             WHEN p.lease_name = ANY (p_lease_names) THEN 'lease_lost' ELSE 'not_found' END
      FROM unnest(v_outcomes) AS o LEFT JOIN leasehold.outbox_pending p ON p.intent_id = o.intent_id
     -- Hashed, as below; = ANY would compare each name with all others.
     WHERE (p.lease_name IN (SELECT unnest(v_held))) IS NOT TRUE
  LOOP
    RETURN NEXT;
  END LOOP;
  SELECT array_agg(ROW (o.intent_id, o.state, o.holder, o.reason, NULL, l.lease_name, l.lease_epoch, o.reference, o.code,
                        o.detail, o.retry_after_seconds, o.elapsed_seconds, o.attempt_no)::leasehold.outcome ORDER BY o.intent_id)
    INTO v_outcomes
    FROM unnest(v_outcomes) AS o
    JOIN leasehold.outbox_pending p ON p.intent_id = o.intent_id
    JOIN leasehold.leases l ON l.lease_name = p.lease_name
   WHERE (p.lease_name IN (SELECT unnest(v_held))) IS TRUE;
  IF v_outcomes IS NOT NULL THEN
    FOR result.intent_id, result.verdict, result.attempt_no, result.state, result.reason, result.due_at IN
      SELECT * FROM leasehold.append_attempts(v_outcomes, v_now, 'lease')
    LOOP
      IF result.verdict = 'applied' AND result.state = 'FAILED' THEN
        v_failed := v_failed || result.intent_id;
        v_reasons := v_reasons || result.reason;
      END IF;
      RETURN NEXT;
    END LOOP;
    IF v_failed <> '{}' THEN
      PERFORM leasehold.pause_failed_streams(v_failed, v_reasons, v_now);
    END IF;
  END IF;

  RETURN QUERY
  SELECT NULL::leasehold.stream_result, advanced FROM leasehold.advance_streams(
    v_held, CASE WHEN v_token_floor IS NULL THEN '{}' ELSE p_continued END, p_free_idle, p_begin, v_token_floor) AS advanced;
  RETURN QUERY
  SELECT NULL::leasehold.stream_result, lost
    FROM leasehold.lost_streams(p_lease_names, p_lease_epochs, v_held || v_passed_over) AS lost;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_stream_attempts(text, text[], bigint[], jsonb, text[], boolean, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_stream_attempts(text, text[], bigint[], jsonb, text[], boolean, boolean)
  TO leasehold_executor;
