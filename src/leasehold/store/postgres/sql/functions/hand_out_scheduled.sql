-- Hand out what calls need, for items under a cluster lease that are to be called now, and mark those calls as
-- possibly in flight. Those that are not returned are not to be called: finished, not due, begun already,
-- not covered by this lease. The mark takes the place of the one that p_mark_no named before: use a number
-- again only when all calls under it have ended. Where a call must be begun by itself,
-- begin_leased_attempts comes after this, and it is not marked here.
-- Locks: the lease row FOR KEY SHARE, then the lease's marks; then the clock. Raises: P7002 when the lease is
-- lost or past its first expiry, 22023.
CREATE OR REPLACE FUNCTION leasehold.hand_out_scheduled(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[], p_mark_no integer
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
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  PERFORM leasehold.require_between('p_mark_no', p_mark_no, 1, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  PERFORM leasehold.lock_call_marks(p_lease_name);
  v_now := clock_timestamp();

  RETURN QUERY
  WITH handed_out AS MATERIALIZED (
    SELECT p.intent_id, p.last_state, p.target, p.contract_version, p.attempt_count + 1 AS attempt_no, p.reference,
           p.priority, p.stream, p.due_at, p.deadline_at, p.first_tried_at,
           leasehold.is_marked_call(c.guarantee, c.key_window_seconds, p.last_state) AS is_marked_here
      FROM leasehold.outbox_pending p
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name
       AND p.begun_at IS NULL AND p.due_at <= v_now
  ), marked AS (
    INSERT INTO leasehold.call_marks (lease_name, mark_no, lease_epoch, intent_ids, attempt_numbers)
    SELECT p_lease_name, p_mark_no, p_lease_epoch,
           coalesce(array_agg(intent_id), '{}'), coalesce(array_agg(attempt_no), '{}')
      FROM handed_out WHERE is_marked_here
        ON CONFLICT ON CONSTRAINT call_marks_pkey DO UPDATE
       SET lease_epoch = excluded.lease_epoch, intent_ids = excluded.intent_ids,
           attempt_numbers = excluded.attempt_numbers
  )
  SELECT h.intent_id, h.last_state, h.target, h.contract_version, h.attempt_no, h.reference, h.priority,
         i.submission_key, i.payload, i.body, i.content_type, i.metadata, i.trace_context, h.stream, i.created_at,
         h.due_at, h.deadline_at, coalesce(h.first_tried_at, v_now), v_now
    FROM handed_out h
    JOIN leasehold.intents i ON i.intent_id = h.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.hand_out_scheduled(text, text, bigint, uuid[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.hand_out_scheduled(text, text, bigint, uuid[], integer) TO leasehold_executor;
