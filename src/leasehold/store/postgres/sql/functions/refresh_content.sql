-- What a call needs, for items under a lease that are to be called now. Those that are not there are not
-- to be called: finished, not due, begun already, not covered by this lease. Nothing is written: where a
-- call must be begun, begin_leased_attempts comes after this.
-- Locks nothing. Raises: P7002 when the lease is lost or past its first expiry, 22023.
CREATE OR REPLACE FUNCTION leasehold.refresh_content(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[]
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
  PERFORM leasehold.verify_leases(p_holder_id, ARRAY[p_lease_name], ARRAY[p_lease_epoch]);
  v_now := clock_timestamp();

  RETURN QUERY
  SELECT p.intent_id, p.last_state, p.target, p.contract_version, p.attempt_count + 1, p.reference, p.priority,
         i.submission_key, i.payload, i.body, i.content_type, i.metadata, i.trace_context, p.stream, i.created_at,
         p.due_at, p.deadline_at, coalesce(p.first_tried_at, v_now), v_now
    FROM leasehold.outbox_pending p
    JOIN leasehold.intents i ON i.intent_id = p.intent_id
   WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name
     AND p.begun_at IS NULL AND p.due_at <= v_now;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refresh_content(text, text, bigint, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.refresh_content(text, text, bigint, uuid[]) TO leasehold_executor;
