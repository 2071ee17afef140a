-- The reaper's step: end claims whose holder fell silent. Not begun: ZOMBIE_REQUEUE, due again in one
-- second. Begun: IN_DOUBT, as the contract's guarantee demands. In doubt or awaiting confirmation before:
-- still so. Each spends an attempt, so poison work ends as FAILED, or is held where it is in doubt.
-- Returns what was written, in whose name, and how long the lease had been expired.
-- A row that cannot be repaired never blocks the others: the batch is then done row by row, and that
-- row is set aside for a minute with a warning; a row that turns out to be finished is removed.
-- Locks: the expired rows, SKIP LOCKED: never waits, and two reapers never repair the same row.
-- Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.repair_expired_leases(p_batch_size integer, p_worker_id text)
RETURNS TABLE (
  intent_id uuid, target text, attempt_no integer, state text, reason text, replaced_holder text,
  stale_seconds double precision, trace_context text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_expired leasehold.outbox_pending[];
BEGIN
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 10000);
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);

  WITH expired AS MATERIALIZED (
    SELECT stale.*
      -- In any order, so that a flood for one target does not keep the reaper from the others.
      FROM (SELECT target FROM leasehold.contracts GROUP BY target ORDER BY random()) AS known
     CROSS JOIN LATERAL (
       SELECT p.* FROM leasehold.outbox_pending p
        WHERE p.target = known.target AND p.claimed_by IS NOT NULL AND p.lease_expires_at <= v_now
        ORDER BY p.lease_expires_at
        LIMIT p_batch_size
          FOR UPDATE SKIP LOCKED) AS stale
     LIMIT p_batch_size
  )
  SELECT coalesce(array_agg(expired), '{}') INTO v_expired FROM expired;

  BEGIN
    RETURN QUERY SELECT * FROM leasehold.record_expired_claims(v_expired, v_now);
  EXCEPTION WHEN others THEN
    FOR v_place IN 1..cardinality(v_expired) LOOP
      BEGIN
        RETURN QUERY SELECT * FROM leasehold.record_expired_claims(v_expired[v_place:v_place], v_now);
      EXCEPTION WHEN others THEN
        PERFORM leasehold.defer_repair(v_expired[v_place], SQLSTATE, SQLERRM);
      END;
    END LOOP;
  END;
END
$$;
REVOKE ALL ON FUNCTION leasehold.repair_expired_leases(integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.repair_expired_leases(integer, text) TO leasehold_executor;
