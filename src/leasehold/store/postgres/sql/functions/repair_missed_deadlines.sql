-- Finish intents that are past their deadline and that nobody works on: FAILED, deadline_exceeded. That is an item
-- without a claim; a row of scope cluster without a call in flight, whether its lease is held or not: its holder may not serve
-- the target, or may have been told to wait; and the head of a stream that nobody holds (lock_missed_under_leases).
-- Intents in doubt or awaiting confirmation are left alone: a deadline does not undo a call.
-- A row that cannot be repaired never blocks the others: the batch is then done row by row, with a warning
-- for that row. The pending row of a finished intent is deleted, and returned without an attempt_no: only the index
-- outbox_attempts_one_terminal_per_intent kept the intent from ending twice, and the caller counts that. Its stream goes on.
-- While a restore is being repaired, or before begin_generation, it does nothing: the lost database may have sent them.
-- Locks: the items; then as lock_missed_under_leases; then as advance_streams. Never waits.
-- Raises: 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.repair_missed_deadlines(p_batch_size integer, p_worker_id text)
RETURNS TABLE (intent_id uuid, attempt_no integer, trace_context text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_missed leasehold.outbox_pending[];
  v_outcomes leasehold.outcome[];
BEGIN
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 10000);
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  PERFORM leasehold.require_read_committed();
  IF leasehold.current_token_floor() IS NULL THEN
    RETURN;
  END IF;
  WITH missed AS MATERIALIZED (
    SELECT p.* FROM leasehold.outbox_pending p
     WHERE p.scope = 'item' AND p.claimed_by IS NULL AND p.deadline_at IS NOT NULL AND p.deadline_at <= v_now
       -- In the words of the index: what is held past its deadline must not be read again each time.
       AND (p.last_state IS NULL OR p.last_state NOT IN ('IN_DOUBT', 'SUBMITTED'))
     ORDER BY p.deadline_at
     LIMIT p_batch_size
       FOR UPDATE SKIP LOCKED
  )
  SELECT array_agg(m) INTO v_missed FROM missed m;
  v_missed := v_missed || ARRAY(SELECT m FROM leasehold.lock_missed_under_leases(
    p_batch_size - coalesce(cardinality(v_missed), 0)) AS m);
  v_now := clock_timestamp();
  SELECT array_agg(leasehold.new_outcome(
           m.intent_id, 'FAILED', p_worker_id, 'deadline_exceeded', format('the deadline was %s', m.deadline_at)))
    INTO v_outcomes FROM unnest(v_missed) AS m;
  BEGIN
    RETURN QUERY SELECT a.intent_id, a.attempt_no, i.trace_context
      FROM leasehold.append_and_continue_streams(v_outcomes, v_now) AS a
      LEFT JOIN leasehold.intents i ON i.intent_id = a.intent_id;
  EXCEPTION WHEN others THEN
    FOR v_place IN 1..cardinality(v_outcomes) LOOP
      BEGIN
        RETURN QUERY SELECT a.intent_id, a.attempt_no, i.trace_context
          FROM leasehold.append_and_continue_streams(v_outcomes[v_place:v_place], v_now) AS a
          LEFT JOIN leasehold.intents i ON i.intent_id = a.intent_id;
      EXCEPTION WHEN others THEN
        RAISE WARNING 'intent % could not be repaired (%): %', v_outcomes[v_place].intent_id, SQLSTATE, SQLERRM;
        RETURN QUERY
        WITH finished AS (
          DELETE FROM leasehold.outbox_pending p WHERE p.intent_id = v_outcomes[v_place].intent_id
             AND leasehold.missing_verdict(p.intent_id) = 'already_terminal'
          RETURNING p.intent_id)
        SELECT f.intent_id, NULL::integer, i.trace_context
          FROM finished f LEFT JOIN leasehold.intents i ON i.intent_id = f.intent_id
         WHERE SQLSTATE = '23505';
        PERFORM leasehold.advance_streams(ARRAY(
          SELECT m.lease_name FROM unnest(v_missed) AS m
           WHERE m.intent_id = v_outcomes[v_place].intent_id AND m.scope = 'stream'
             AND NOT EXISTS (SELECT FROM leasehold.outbox_pending p WHERE p.intent_id = m.intent_id)),
          '{}', p_free_idle => true, p_begin => false);
      END;
    END LOOP;
  END;
END
$$;
REVOKE ALL ON FUNCTION leasehold.repair_missed_deadlines(integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.repair_missed_deadlines(integer, text) TO leasehold_executor;
