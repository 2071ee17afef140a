-- Record the results of claimed items: a JSON array of {intent_id, lease_token, state, reason, code, reference,
-- detail, retry_after_seconds, elapsed_seconds, attempt_no}. One verdict per result: applied (with the ledger row that was
-- written), lease_lost, superseded, ceiling_reached, already_terminal, not_found, locked (another transaction has the row: report
-- the result again a moment later). Each applied result writes exactly one ledger row; the others write nothing.
-- attempt_no is the attempt that the result is about, as the caller read it. If the ledger has gone on since, the result is
-- superseded. Without it, a result is about the next attempt: a claim or a begun call keeps all others off.
-- Locks: the pending rows, by id, SKIP LOCKED; then it reads the clock.
-- Raises, and writes nothing: P7003 for a state that no executor may report, or for a call that had to be begun and was
-- not; 22023 for invalid arguments.
CREATE OR REPLACE FUNCTION leasehold.complete_outbox_attempts(p_worker_id text, p_results jsonb)
RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_outcomes leasehold.outcome[];
  v_locked uuid[];
BEGIN
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  v_outcomes := leasehold.read_results(p_results, p_worker_id, NULL, NULL);

  v_locked := leasehold.lock_pending_rows(v_outcomes);
  IF v_locked <> '{}' THEN
    v_outcomes := leasehold.without_outcomes(v_outcomes, v_locked);
    RETURN QUERY SELECT locked, 'locked', NULL::integer, NULL::text, NULL::text, NULL::timestamptz
                   FROM unnest(v_locked) AS locked;
  END IF;
  RETURN QUERY SELECT * FROM leasehold.append_attempts(v_outcomes, clock_timestamp(), 'claim');
END
$$;
REVOKE ALL ON FUNCTION leasehold.complete_outbox_attempts(text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.complete_outbox_attempts(text, jsonb) TO leasehold_executor;
