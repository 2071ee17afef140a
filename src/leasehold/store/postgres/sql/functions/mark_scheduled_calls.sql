-- Mark calls as possibly in flight whose content came with the window (refresh_due_window): what
-- hand_out_scheduled does, without handing out what is there already. Says when, and which of them are left
-- out, not marked and not to be called: finished, not due, begun already or to be begun by itself, not covered by
-- this lease, or of another attempt than the one that was read.
-- Locks: the lease row FOR KEY SHARE, then the lease's marks; then the clock. Raises: P7002 when the lease is
-- lost or past its first expiry, 22023.
CREATE OR REPLACE FUNCTION leasehold.mark_scheduled_calls(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[], p_attempt_numbers integer[],
  p_mark_no integer, OUT marked_at timestamptz, OUT left_out uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_ids uuid[] := p_intent_ids;
  v_numbers integer[] := p_attempt_numbers;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  IF cardinality(p_attempt_numbers) IS DISTINCT FROM cardinality(p_intent_ids)
     OR array_position(p_attempt_numbers, NULL) IS NOT NULL OR 1 > ANY (p_attempt_numbers) THEN
    RAISE EXCEPTION 'p_attempt_numbers must have one number, from 1, for each of the % calls', cardinality(p_intent_ids)
      USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_between('p_mark_no', p_mark_no, 1, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  PERFORM leasehold.lock_scheduled_calls(p_lease_name);
  marked_at := clock_timestamp();

  WITH due AS MATERIALIZED (
    -- In one walk of the index, which is half of what a search for each costs.
    SELECT p.intent_id, p.attempt_count + 1 AS attempt_no
      FROM leasehold.outbox_pending p
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name
       AND p.begun_at IS NULL AND p.due_at <= marked_at
       AND leasehold.is_marked_call(c.guarantee, c.key_window_seconds, p.last_state)
  )
  SELECT coalesce(array_agg(asked.intent_id), '{}') INTO left_out
    FROM unnest(p_intent_ids, p_attempt_numbers) AS asked (intent_id, attempt_no)
    LEFT JOIN due USING (intent_id, attempt_no)
   WHERE due.intent_id IS NULL;
  IF left_out <> '{}' THEN
    SELECT coalesce(array_agg(asked.intent_id), '{}'), coalesce(array_agg(asked.attempt_no), '{}')
      INTO v_ids, v_numbers
      FROM unnest(p_intent_ids, p_attempt_numbers) AS asked (intent_id, attempt_no)
     WHERE asked.intent_id <> ALL (left_out);
  END IF;
  INSERT INTO leasehold.scheduled_calls (lease_name, mark_no, lease_epoch, intent_ids, attempt_numbers)
  VALUES (p_lease_name, p_mark_no, p_lease_epoch, v_ids, v_numbers)
      ON CONFLICT ON CONSTRAINT scheduled_calls_pkey DO UPDATE
     SET lease_epoch = excluded.lease_epoch, intent_ids = excluded.intent_ids,
         attempt_numbers = excluded.attempt_numbers;
END
$$;
REVOKE ALL ON FUNCTION leasehold.mark_scheduled_calls(text, text, bigint, uuid[], integer[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.mark_scheduled_calls(text, text, bigint, uuid[], integer[], integer)
  TO leasehold_executor;
