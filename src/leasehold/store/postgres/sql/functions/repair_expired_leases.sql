-- The reaper's step: end claims whose holder no longer renews them. Not begun: ZOMBIE_REQUEUE, due again in one
-- second. Begun: IN_DOUBT, and the contract's guarantee decides what follows. An intent that was in doubt or awaits
-- confirmation stays so. Each repair spends an attempt, so work that kills its workers ends as FAILED, or is held if it
-- is in doubt. Returns what was written, for which holder, and for how long the lease had been expired.
-- An expiry further away than the claim was granted for means that the clock stepped back. It is moved to the time at
-- which the holder's own trust ends at the latest, and the claim is repaired after that.
-- Claims are taken by due time, so they stand first in the line of their target and priority. Each line is read in pages
-- until a page has no claim: the cost follows the claims, not the backlog behind them. Rows that come later may be due
-- earlier, if their transaction was long, and thousands of them hide the claims behind. So p_is_full reads the whole
-- table instead, about once per lease.
-- A row that cannot be repaired does not block the others: the batch is then repaired row by row, and that row is set
-- aside for a minute with a warning. The pending row of a finished intent is deleted. If only the index
-- outbox_attempts_one_terminal_per_intent kept the intent from ending twice, its row is returned without an attempt_no and with the
-- reason terminal_guard_hit: the caller counts it.
-- While a restore is being repaired, or before begin_generation, it does nothing: the lost database may have begun their calls.
-- Locks: the expired rows, SKIP LOCKED, so it never waits and two reapers never repair the same row. Reads the clock after
-- that.
-- Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.repair_expired_leases(
  p_batch_size integer, p_worker_id text, p_is_full boolean DEFAULT false
) RETURNS TABLE (
  intent_id uuid, target text, attempt_no integer, state text, reason text, replaced_holder text,
  stale_seconds double precision, trace_context text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  c_page_size CONSTANT integer := 5000;
  v_now timestamptz := clock_timestamp();
  v_line record;
  v_after_due_at timestamptz;
  v_after_intent_id uuid;
  v_rows integer;
  v_claims integer;
  v_page_expired uuid[];
  v_found uuid[] := '{}';
  v_expired leasehold.outbox_pending[];
BEGIN
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 10000);
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  IF p_is_full IS NULL THEN
    RAISE EXCEPTION 'p_is_full must not be NULL' USING ERRCODE = '22023';
  END IF;
  IF leasehold.current_token_floor() IS NULL THEN
    RETURN;
  END IF;

  IF p_is_full THEN
    -- Without the scope, which only items with a claim have: it would suggest the due index, which is slower here.
    v_found := ARRAY(
      SELECT p.intent_id FROM leasehold.outbox_pending p
       WHERE p.claimed_by IS NOT NULL
         AND (p.lease_expires_at <= v_now OR p.lease_expires_at > v_now + make_interval(secs => p.lease_seconds))
       LIMIT p_batch_size);
  END IF;
  -- In random order, so that a flood for one target does not keep the reaper from the others.
  FOR v_line IN SELECT target, level::smallint AS priority
                  FROM (SELECT target FROM leasehold.contracts GROUP BY target ORDER BY random()) AS known
                 CROSS JOIN generate_series(0, 3) AS level
                 WHERE NOT p_is_full LOOP
    v_after_due_at := '-infinity';
    v_after_intent_id := '00000000-0000-0000-0000-000000000000';
    LOOP
      SELECT (array_agg(p.due_at))[count(*)], (array_agg(p.intent_id))[count(*)], count(*), count(p.claimed_by),
             array_agg(p.intent_id) FILTER (WHERE p.claimed_by IS NOT NULL
               AND (p.lease_expires_at <= v_now
                    OR p.lease_expires_at > v_now + make_interval(secs => p.lease_seconds)))
        INTO v_after_due_at, v_after_intent_id, v_rows, v_claims, v_page_expired
        FROM (SELECT p.due_at, p.intent_id, p.claimed_by, p.lease_expires_at, p.lease_seconds
                FROM leasehold.outbox_pending p
               WHERE p.scope = 'item' AND p.target = v_line.target AND p.priority = v_line.priority
                 AND (p.due_at, p.intent_id) > (v_after_due_at, v_after_intent_id)
               ORDER BY p.due_at, p.intent_id
               LIMIT c_page_size) AS p;
      v_found := v_found || v_page_expired;
      EXIT WHEN v_claims = 0 OR v_rows < c_page_size OR cardinality(v_found) >= p_batch_size;
    END LOOP;
    EXIT WHEN cardinality(v_found) >= p_batch_size;
  END LOOP;

  UPDATE leasehold.outbox_pending p SET lease_expires_at = v_now + make_interval(secs => p.lease_seconds)
    FROM (SELECT p.ctid AS place FROM leasehold.outbox_pending p
           WHERE p.intent_id = ANY (v_found)
             AND p.lease_expires_at > v_now + make_interval(secs => p.lease_seconds)
             FOR NO KEY UPDATE SKIP LOCKED) AS impossible
   WHERE p.ctid = impossible.place;
  SELECT coalesce(array_agg(expired), '{}') INTO v_expired
    FROM (SELECT p.* FROM leasehold.outbox_pending p
           WHERE p.intent_id = ANY (v_found) AND p.claimed_by IS NOT NULL AND p.lease_expires_at <= v_now
           LIMIT p_batch_size
             FOR UPDATE SKIP LOCKED) AS expired;

  v_now := clock_timestamp();
  BEGIN
    RETURN QUERY SELECT * FROM leasehold.record_expired_claims(v_expired, v_now);
  EXCEPTION WHEN others THEN
    FOR v_place IN 1..cardinality(v_expired) LOOP
      BEGIN
        RETURN QUERY SELECT * FROM leasehold.record_expired_claims(v_expired[v_place:v_place], v_now);
      EXCEPTION WHEN others THEN
        PERFORM leasehold.defer_repair(v_expired[v_place], SQLSTATE, SQLERRM);
        RETURN QUERY
        SELECT e.intent_id, e.target, NULL::integer, NULL::text, 'terminal_guard_hit', e.claimed_by,
               extract(epoch FROM v_now - e.lease_expires_at)::double precision, i.trace_context
          FROM unnest(v_expired[v_place:v_place]) AS e LEFT JOIN leasehold.intents i ON i.intent_id = e.intent_id
         WHERE SQLSTATE = '23505'
           AND NOT EXISTS (SELECT FROM leasehold.outbox_pending p WHERE p.intent_id = e.intent_id);
      END;
    END LOOP;
  END;
END
$$;
REVOKE ALL ON FUNCTION leasehold.repair_expired_leases(integer, text, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.repair_expired_leases(integer, text, boolean) TO leasehold_executor;
