-- Mark the calls of a batch as in flight under a cluster lease, before the leader makes them. Whoever takes the
-- lease over puts marked calls in doubt. Nobody can cancel them.
-- p_attempt_numbers has the attempt number of each call. The batch replaces the previous batch under p_mark_no;
-- reuse a number only after all its calls have ended.
-- The first row returned has the time of the mark (marked_at) and the calls that must not be made (left_out):
-- the intent is finished, not due, already begun, not covered by this lease, or at another attempt. One row
-- follows for each call that p_needs_content asks for, with its content and fencing token.
-- A call that must be begun by itself (see is_marked_call) is not marked: call begin_leased_attempts for it
-- next. Without p_needs_content it is left out.
-- Locks: the lease row FOR KEY SHARE, then the lease's call marks. Reads the clock after that.
-- Raises: P7002 if the lease is lost or past its first expiry, P7006, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.mark_calls(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[], p_attempt_numbers integer[],
  p_mark_no integer, p_needs_content boolean[] DEFAULT NULL
) RETURNS TABLE (
  marked_at timestamptz, left_out uuid[], intent_id uuid, submission_key uuid, fencing_token bigint,
  payload jsonb, body bytea, content_type text, metadata jsonb, trace_context text, created_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_marked_ids uuid[];
  v_marked_numbers integer[];
  v_content_ids uuid[];
  v_token_floor bigint;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  IF cardinality(p_attempt_numbers) IS DISTINCT FROM cardinality(p_intent_ids)
     OR array_position(p_attempt_numbers, NULL) IS NOT NULL OR 1 > ANY (p_attempt_numbers) THEN
    RAISE EXCEPTION 'p_attempt_numbers must have one number, at least 1, for each of the % intents',
      cardinality(p_intent_ids) USING ERRCODE = '22023';
  ELSIF cardinality(p_needs_content) <> cardinality(p_intent_ids)
     OR array_position(p_needs_content, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'p_needs_content must be NULL or have one entry for each of the % intents',
      cardinality(p_intent_ids) USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_between('p_mark_no', p_mark_no, 1, 10000);
  v_token_floor := leasehold.require_generation();
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  PERFORM leasehold.lock_call_marks(p_lease_name);
  v_now := clock_timestamp();

  WITH due AS MATERIALIZED (
    -- One scan of the index takes half the time of one search per intent.
    SELECT p.intent_id, p.attempt_count + 1 AS attempt_no,
           leasehold.is_marked_call(c.guarantee, c.key_window_seconds, p.last_state) AS is_marked
      FROM leasehold.outbox_pending p
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name
       AND p.begun_at IS NULL AND p.due_at <= v_now
  )
  SELECT coalesce(array_agg(call.intent_id) FILTER (WHERE due.is_marked), '{}'),
         coalesce(array_agg(call.attempt_no) FILTER (WHERE due.is_marked), '{}'),
         array_agg(call.intent_id) FILTER (WHERE due.intent_id IS NOT NULL AND call.needs_content),
         coalesce(array_agg(call.intent_id) FILTER (
           WHERE due.intent_id IS NULL OR NOT (due.is_marked OR coalesce(call.needs_content, false))), '{}')
    INTO v_marked_ids, v_marked_numbers, v_content_ids, left_out
    FROM unnest(p_intent_ids, p_attempt_numbers, p_needs_content) AS call (intent_id, attempt_no, needs_content)
    LEFT JOIN due USING (intent_id, attempt_no);
  INSERT INTO leasehold.call_marks (lease_name, mark_no, lease_epoch, intent_ids, attempt_numbers)
  VALUES (p_lease_name, p_mark_no, p_lease_epoch, v_marked_ids, v_marked_numbers)
      ON CONFLICT ON CONSTRAINT call_marks_pkey DO UPDATE
     SET lease_epoch = excluded.lease_epoch, intent_ids = excluded.intent_ids,
         attempt_numbers = excluded.attempt_numbers;

  marked_at := v_now;
  RETURN NEXT;
  IF v_content_ids IS NOT NULL THEN
    RETURN QUERY
    SELECT v_now, NULL::uuid[], i.intent_id, i.submission_key,
           leasehold.fencing_token(v_token_floor, i.token_base, p_lease_epoch, call.attempt_no), i.payload, i.body,
           i.content_type, i.metadata, i.trace_context, i.created_at
      FROM leasehold.intents i
      JOIN unnest(p_intent_ids, p_attempt_numbers) AS call (intent_id, attempt_no) ON call.intent_id = i.intent_id
     WHERE i.intent_id = ANY (v_content_ids);
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.mark_calls(text, text, bigint, uuid[], integer[], integer, boolean[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.mark_calls(text, text, bigint, uuid[], integer[], integer, boolean[])
  TO leasehold_executor;
