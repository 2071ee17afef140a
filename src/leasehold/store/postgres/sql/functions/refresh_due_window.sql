-- What is to be done next under these leases: of a cluster lease the first p_limit by due time of each of
-- p_targets in each priority, of a stream the first p_limit by number. What is held is not to be done.
-- With it a schedule is built anew and refilled, whatever the size of the backlog.
-- Locks nothing. Raises: P7002 when one of the leases is lost, 22023.
CREATE OR REPLACE FUNCTION leasehold.refresh_due_window(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_targets text[], p_limit integer
) RETURNS TABLE (
  intent_id uuid, lease_name text, target text, contract_version integer, stream text, stream_seq bigint,
  priority smallint, due_at timestamptz, deadline_at timestamptz, attempt_count integer, last_state text,
  reference text, first_tried_at timestamptz, begun_at timestamptz, last_modified_at timestamptz,
  horizon timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_horizon timestamptz;
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 10000);
  PERFORM leasehold.require_list('p_targets', p_targets, 10000);
  PERFORM leasehold.verify_leases(p_holder_id, p_lease_names, p_lease_epochs);
  v_horizon := leasehold.change_horizon();

  RETURN QUERY
  SELECT p.intent_id, p.lease_name, p.target, p.contract_version, p.stream, p.stream_seq, p.priority, p.due_at,
         p.deadline_at, p.attempt_count, p.last_state, p.reference, p.first_tried_at, p.begun_at, p.last_modified_at,
         v_horizon
    FROM unnest(p_lease_names) AS asked (lease_name)
   CROSS JOIN LATERAL (
     (SELECT cluster_due.*
        FROM generate_series(0, 3) AS level CROSS JOIN unnest(p_targets) AS of (target)
       CROSS JOIN LATERAL (
        SELECT p.* FROM leasehold.outbox_pending p
         WHERE p.scope = 'cluster' AND p.target = of.target AND p.lease_name = asked.lease_name
           AND p.priority = level::smallint AND p.due_at < 'infinity'
         ORDER BY p.due_at, p.intent_id LIMIT p_limit) AS cluster_due)
     UNION ALL
     (SELECT p.* FROM leasehold.outbox_pending p
       WHERE p.scope = 'stream'
         AND p.target = split_part(asked.lease_name, '/', 2)
         AND p.stream = substr(asked.lease_name, length(split_part(asked.lease_name, '/', 2)) + 9)
         AND asked.lease_name LIKE 'stream/%'
       ORDER BY p.stream_seq LIMIT p_limit)) AS p;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refresh_due_window(text, text[], bigint[], text[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.refresh_due_window(text, text[], bigint[], text[], integer) TO leasehold_executor;
