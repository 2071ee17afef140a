-- Read up to p_limit rows that changed under these leases after a position, in the order of (last_modified_at,
-- intent_id). A transaction that is still open can commit rows before that position: read_open_writers tells which
-- are open, and what to read again when they have ended. The rows have no content; mark_calls and
-- begin_leased_attempts return it.
-- Locks nothing. Raises: P7002 if one of the leases is lost, 22023.
CREATE OR REPLACE FUNCTION leasehold.refresh_schedule(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_after_modified_at timestamptz,
  p_after_intent_id uuid, p_limit integer
) RETURNS TABLE (
  intent_id uuid, lease_name text, target text, contract_version integer, stream text, stream_seq bigint,
  priority smallint, due_at timestamptz, deadline_at timestamptz, attempt_count integer, last_state text,
  reference text, first_tried_at timestamptz, begun_at timestamptz, last_modified_at timestamptz, content_bytes integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 10000);
  IF p_after_modified_at IS NULL OR p_after_intent_id IS NULL THEN
    RAISE EXCEPTION 'the position is NULL; begin with (-infinity, %)', '00000000-0000-0000-0000-000000000000'
      USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.verify_leases(p_holder_id, p_lease_names, p_lease_epochs);

  RETURN QUERY
  SELECT changed.*
    FROM unnest(p_lease_names) AS asked (lease_name)
   CROSS JOIN LATERAL (
     SELECT p.intent_id, p.lease_name, p.target, p.contract_version, p.stream, p.stream_seq, p.priority, p.due_at,
            p.deadline_at, p.attempt_count, p.last_state, p.reference, p.first_tried_at, p.begun_at,
            p.last_modified_at, p.content_bytes
       FROM leasehold.outbox_pending p
      WHERE p.scope = 'cluster' AND p.lease_name = asked.lease_name
        AND (p.last_modified_at, p.intent_id) > (p_after_modified_at, p_after_intent_id)
      ORDER BY p.last_modified_at, p.intent_id
      LIMIT p_limit) AS changed
   ORDER BY changed.last_modified_at, changed.intent_id
   LIMIT p_limit;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refresh_schedule(text, text[], bigint[], timestamptz, uuid, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.refresh_schedule(text, text[], bigint[], timestamptz, uuid, integer)
  TO leasehold_executor;
