-- Read what is to be done next under these cluster leases: the first p_limit rows by due time for each of p_targets and
-- each priority. Held rows are left out.
-- A leader builds and refills its due queue with it; the cost does not grow with the backlog.
-- A row has its content (created_at is set) if the content has at most p_content_bytes as text, the row is due, and its
-- call only needs mark_calls, which returns the content of the others. To continue reading, p_after_due_at and
-- p_after_intent_ids have the last row read for the four priorities of each target, one target after the other.
-- Locks nothing. Raises: P7002 when one of the leases is lost, P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.refresh_due_rows(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_targets text[], p_limit integer,
  p_content_bytes integer DEFAULT 0, p_after_due_at timestamptz[] DEFAULT NULL, p_after_intent_ids uuid[] DEFAULT NULL
) RETURNS TABLE (
  intent_id uuid, lease_name text, target text, contract_version integer, stream text, stream_seq bigint,
  priority smallint, due_at timestamptz, deadline_at timestamptz, attempt_count integer, last_state text,
  reference text, first_tried_at timestamptz, begun_at timestamptz, last_modified_at timestamptz,
  submission_key uuid, fencing_token bigint, payload jsonb, body bytea,
  content_type text, metadata jsonb, trace_context text, created_at timestamptz, content_bytes integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  c_first_id CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
  v_now timestamptz;
  v_token_floor bigint;
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 10000);
  PERFORM leasehold.require_between('p_content_bytes', p_content_bytes, 0, 1048576);
  PERFORM leasehold.require_list('p_targets', p_targets, 10000);
  IF num_nonnulls(p_after_due_at, p_after_intent_ids) = 1
     OR cardinality(p_after_due_at) <> 4 * cardinality(p_targets) OR array_position(p_after_due_at, NULL) IS NOT NULL
     OR cardinality(p_after_intent_ids) <> 4 * cardinality(p_targets)
     OR array_position(p_after_intent_ids, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'p_after_due_at and p_after_intent_ids must both have four entries for each of the % targets',
      cardinality(p_targets) USING ERRCODE = '22023';
  END IF;
  v_token_floor := leasehold.require_generation();
  PERFORM leasehold.verify_leases(p_holder_id, p_lease_names, p_lease_epochs);
  v_now := clock_timestamp();

  RETURN QUERY
  SELECT p.intent_id, p.lease_name, p.target, p.contract_version, p.stream, p.stream_seq, p.priority, p.due_at,
         p.deadline_at, p.attempt_count, p.last_state, p.reference, p.first_tried_at, p.begun_at, p.last_modified_at,
         i.submission_key, leasehold.fencing_token(v_token_floor, i.token_base, asked.lease_epoch, p.attempt_count + 1), i.payload,
         i.body, i.content_type, i.metadata, i.trace_context, i.created_at, p.content_bytes
    FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
   CROSS JOIN LATERAL (
     SELECT cluster_due.*
        FROM generate_series(0, 3) AS level CROSS JOIN unnest(p_targets) WITH ORDINALITY AS of (target, place)
       CROSS JOIN LATERAL (
        SELECT coalesce(p_after_due_at[(of.place - 1) * 4 + level + 1], '-infinity') AS due_at,
               coalesce(p_after_intent_ids[(of.place - 1) * 4 + level + 1], c_first_id) AS intent_id) AS after
       CROSS JOIN LATERAL (
        SELECT p.* FROM leasehold.outbox_pending p
         WHERE p.scope = 'cluster' AND p.target = of.target AND p.lease_name = asked.lease_name
           AND p.priority = level::smallint AND p.due_at < 'infinity'
           AND (p.due_at, p.intent_id) > (after.due_at, after.intent_id)
         ORDER BY p.due_at, p.intent_id LIMIT p_limit) AS cluster_due) AS p
    LEFT JOIN leasehold.contracts c
      ON p_content_bytes > 0 AND c.target = p.target AND c.version = p.contract_version
    -- Found one by one; a join could read every intent that was ever accepted.
    LEFT JOIN LATERAL (
      SELECT i.submission_key, i.token_base, i.payload, i.body, i.content_type, i.metadata, i.trace_context,
             i.created_at
        FROM leasehold.intents i
       WHERE i.intent_id = p.intent_id AND p.scope = 'cluster' AND p.due_at <= v_now AND p.begun_at IS NULL
         AND leasehold.is_marked_call(c.guarantee, c.key_window_seconds, p.last_state)
         AND p.content_bytes <= p_content_bytes
       LIMIT 1) AS i ON p_content_bytes > 0;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refresh_due_rows(
  text, text[], bigint[], text[], integer, integer, timestamptz[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.refresh_due_rows(
  text, text[], bigint[], text[], integer, integer, timestamptz[], uuid[])
  TO leasehold_executor;
