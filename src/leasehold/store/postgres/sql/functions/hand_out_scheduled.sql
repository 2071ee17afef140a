-- Hand out what calls need, for items under a cluster lease that are to be called now, and mark those calls as
-- possibly in flight. Those that are not returned are not to be called: finished, not due, begun already,
-- not covered by this lease. p_in_flight names the calls of this holder that have not ended; the mark is
-- about these and the new ones, and forgets all others. Where a call must be begun by itself,
-- begin_leased_attempts comes after this, and it is not marked here.
-- Locks: the lease row FOR KEY SHARE, then the mark; then the clock. Raises: P7002 when the lease is lost or
-- past its first expiry, 22023.
CREATE OR REPLACE FUNCTION leasehold.hand_out_scheduled(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[], p_in_flight uuid[]
) RETURNS TABLE (
  intent_id uuid, last_state text, target text, contract_version integer, attempt_no integer,
  reference text, priority smallint, submission_key uuid, payload jsonb, body bytea, content_type text,
  metadata jsonb, trace_context text, stream text, created_at timestamptz, due_at timestamptz,
  deadline_at timestamptz, first_tried_at timestamptz, read_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_marked leasehold.scheduled_calls;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  PERFORM leasehold.require_list('p_in_flight', p_in_flight, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  v_marked := leasehold.lock_scheduled_calls(p_lease_name);
  v_now := clock_timestamp();

  RETURN QUERY
  WITH handed_out AS MATERIALIZED (
    SELECT p.intent_id, p.last_state, p.target, p.contract_version, p.attempt_count + 1 AS attempt_no, p.reference,
           p.priority, p.stream, p.due_at, p.deadline_at, p.first_tried_at,
           c.guarantee IN ('keyed', 'fenced') AND c.key_window_seconds IS NULL
             AND coalesce(p.last_state <> 'SUBMITTED', true) AS is_marked_here
      FROM leasehold.outbox_pending p
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name
       AND p.begun_at IS NULL AND p.due_at <= v_now
  ), marked AS (
    UPDATE leasehold.scheduled_calls
       SET lease_epoch = p_lease_epoch, intent_ids = coalesce(calls.intent_ids, '{}'),
           attempt_numbers = coalesce(calls.attempt_numbers, '{}')
      FROM (SELECT array_agg(call.intent_id) AS intent_ids, array_agg(call.attempt_no) AS attempt_numbers
              FROM (SELECT h.intent_id, h.attempt_no FROM handed_out h WHERE h.is_marked_here
                    UNION ALL
                    SELECT before.intent_id, before.attempt_no
                      FROM unnest(v_marked.intent_ids, v_marked.attempt_numbers) AS before (intent_id, attempt_no)
                      -- Joined, for a list would be searched from its beginning for each of them.
                      JOIN unnest(p_in_flight) AS still (intent_id) USING (intent_id)
                     WHERE v_marked.lease_epoch = p_lease_epoch) AS call
           ) AS calls
     WHERE lease_name = p_lease_name
  )
  SELECT h.intent_id, h.last_state, h.target, h.contract_version, h.attempt_no, h.reference, h.priority,
         i.submission_key, i.payload, i.body, i.content_type, i.metadata, i.trace_context, h.stream, i.created_at,
         h.due_at, h.deadline_at, coalesce(h.first_tried_at, v_now), v_now
    FROM handed_out h
    JOIN leasehold.intents i ON i.intent_id = h.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.hand_out_scheduled(text, text, bigint, uuid[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.hand_out_scheduled(text, text, bigint, uuid[], uuid[]) TO leasehold_executor;
