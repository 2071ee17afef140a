-- End claims that expired before their call was begun: they are due in one second. Each gets the ledger row of the
-- lease that ends: ZOMBIE_REQUEUE, or the doubt that was there before (see expired_claim_outcome).
-- It looks at the first thousand rows of each target and priority: claims are taken in this order, so they stand
-- first. Everything else is left to repair_expired_leases: rows further behind, with no attempt left, or past their
-- deadline; and all of them if one cannot be requeued, for repair goes row by row then.
-- Returns where the rows of each target begin, four due times (one per priority) for each target in turn: the caller
-- need not pass over the dead rows before them a second time.
-- Locks: the expired rows, SKIP LOCKED, so it never waits. Reads the clock after that. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.requeue_expired_claims(
  p_batch_size integer, p_targets text[], p_now timestamptz
) RETURNS timestamptz[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_line record;
  v_due_from timestamptz[] := '{}';
  v_found uuid[] := '{}';
  v_outcomes leasehold.outcome[];
BEGIN
  FOR v_line IN
    SELECT line.*
      FROM unnest(p_targets) WITH ORDINALITY AS asked (target, place)
     CROSS JOIN generate_series(0, 3) AS level
     CROSS JOIN LATERAL (
       SELECT min(first.due_at) AS due_at,
              array_agg(first.intent_id) FILTER (WHERE first.claimed_by IS NOT NULL
                AND first.lease_expires_at <= p_now AND first.begun_at IS NULL) AS expired
         FROM (SELECT p.intent_id, p.due_at, p.claimed_by, p.lease_expires_at, p.begun_at FROM leasehold.outbox_pending p
                WHERE p.scope = 'item' AND p.target = asked.target AND p.priority = level::smallint
                ORDER BY p.due_at, p.intent_id
                LIMIT 1000) AS first) AS line
     ORDER BY asked.place, level LOOP
    v_due_from := v_due_from || coalesce(v_line.due_at, p_now);
    v_found := v_found || v_line.expired;
  END LOOP;
  IF v_found = '{}' THEN
    RETURN v_due_from;
  END IF;
  WITH expired AS MATERIALIZED (
    SELECT p.*
      FROM leasehold.outbox_pending p
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE p.intent_id = ANY (v_found) AND p.claimed_by IS NOT NULL AND p.lease_expires_at <= p_now AND p.begun_at IS NULL
       AND p.attempt_count + 1 < c.attempts_max AND coalesce(p.deadline_at > p_now, true)
     LIMIT p_batch_size
       FOR UPDATE OF p SKIP LOCKED
  )
  SELECT array_agg(leasehold.expired_claim_outcome(expired)) INTO v_outcomes FROM expired;
  IF v_outcomes IS NOT NULL THEN
    BEGIN
      PERFORM leasehold.append_attempts(v_outcomes, clock_timestamp(), 'none');
    EXCEPTION WHEN others THEN
      RAISE WARNING 'expired claims are left to repair (%): %', SQLSTATE, SQLERRM;
    END;
  END IF;
  RETURN v_due_from;
END
$$;
REVOKE ALL ON FUNCTION leasehold.requeue_expired_claims(integer, text[], timestamptz) FROM PUBLIC;
