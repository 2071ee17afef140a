-- Count the unfinished intents of each target, but no further than the limit beside it: for an intake that
-- refuses more than a queue shall hold. Costs as much as the limits let it count. Locks nothing.
-- Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.read_queue_depths(p_targets text[], p_limits integer[])
RETURNS TABLE (target text, depth bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  IF p_limits IS NULL OR cardinality(p_limits) <> cardinality(p_targets)
     OR EXISTS (SELECT FROM unnest(p_limits) AS most WHERE most IS NULL OR most NOT BETWEEN 1 AND 10000000) THEN
    RAISE EXCEPTION 'p_limits must have a number from 1 to 10000000 for each of p_targets' USING ERRCODE = '22023';
  END IF;
  -- One part for each index that leads from a target to its rows; together they hold every row once.
  RETURN QUERY
  SELECT asked.target, least(asked.most, items.rows + streamed.rows + clustered.rows)
    FROM unnest(p_targets, p_limits) AS asked (target, most)
   CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
     SELECT FROM leasehold.outbox_pending p
      WHERE p.target = asked.target AND p.scope = 'item' LIMIT asked.most) AS r) AS items
   CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
     SELECT FROM leasehold.outbox_pending p
      WHERE p.target = asked.target AND p.scope = 'stream' LIMIT asked.most) AS r) AS streamed
   CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
     SELECT FROM leasehold.outbox_pending p
      WHERE p.target = asked.target AND p.scope = 'cluster' LIMIT asked.most) AS r) AS clustered;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_queue_depths(text[], integer[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_queue_depths(text[], integer[])
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
