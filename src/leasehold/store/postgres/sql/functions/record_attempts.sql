-- Record the results of items under a cluster lease. For streams see record_stream_attempts. The results are those of
-- complete_outbox_attempts without tokens; one that is not of a call that was marked or begun needs its attempt_no.
-- The caller logs and counts a result that was not applied, and never retries it unless the row was locked.
-- A deferred call (DEFERRED) writes no ledger row that would end its mark, so its mark is removed in the same write, if the result is
-- applied: the mark of a later call of the intent stays.
-- Verdicts: applied, superseded, ceiling_reached, already_terminal, not_found (also if this lease does not cover the item), locked
-- (another transaction has the row: report the result again a moment later).
-- Locks: the lease row FOR KEY SHARE; the pending rows by id, SKIP LOCKED; then the lease's call marks, if a call was deferred.
-- Reads the clock after each.
-- Raises: P7002 if the lease is lost; P7003 and 22023 as complete_outbox_attempts; 22023 for the lease of a stream. Then
-- nothing is written.
CREATE OR REPLACE FUNCTION leasehold.record_attempts(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_results jsonb
) RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_outcomes leasehold.outcome[];
  v_locked uuid[];
  v_deferred uuid[];
  v_now timestamptz;
BEGIN
  IF p_lease_name LIKE 'stream/%' THEN
    RAISE EXCEPTION 'lease % covers a stream; record_stream_attempts records its results', p_lease_name USING ERRCODE = '22023';
  END IF;
  v_outcomes := leasehold.read_results(p_results, p_holder_id, p_lease_name, p_lease_epoch);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  v_locked := leasehold.lock_pending_rows(v_outcomes);
  IF v_locked <> '{}' THEN
    v_outcomes := leasehold.without_outcomes(v_outcomes, v_locked);
    RETURN QUERY SELECT locked, 'locked', NULL::integer, NULL::text, NULL::text, NULL::timestamptz
                   FROM unnest(v_locked) AS locked;
  END IF;
  v_deferred := ARRAY(SELECT o.intent_id FROM unnest(v_outcomes) AS o WHERE o.state = 'DEFERRED');
  IF v_deferred <> '{}' THEN
    PERFORM leasehold.lock_call_marks(p_lease_name);
    -- Check again, because the lease may have expired while this session waited for the marks.
    PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  END IF;
  v_now := leasehold.announce_change();
  IF v_deferred = '{}' THEN
    RETURN QUERY SELECT * FROM leasehold.append_attempts(v_outcomes, v_now, 'lease');
    RETURN;
  END IF;
  FOR intent_id, verdict, attempt_no, state, reason, due_at IN
    SELECT * FROM leasehold.append_attempts(v_outcomes, v_now, 'lease')
  LOOP
    IF verdict <> 'applied' THEN
      v_deferred := array_remove(v_deferred, intent_id);
    END IF;
    RETURN NEXT;
  END LOOP;
  PERFORM leasehold.remove_call_marks(p_lease_name, v_deferred);
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_attempts(text, text, bigint, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_attempts(text, text, bigint, jsonb) TO leasehold_executor;
