-- Under which terms, no longer current, intents are still pending: a target that was given another
-- scope or group keeps what was accepted before where it was, and somebody must finish it there. The
-- version is the newest with such a scope and group. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.read_former_terms()
RETURNS TABLE (target text, version integer, scope text, lease_name text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH placed AS MATERIALIZED (
    SELECT DISTINCT ON (c.target, c.scope, c.lease_name)
           c.target, c.version, c.scope, c.lease_name, max(c.version) OVER (PARTITION BY c.target) AS current_version
      FROM leasehold.contracts c
     ORDER BY c.target, c.scope, c.lease_name, c.version DESC)
  SELECT placed.target, placed.version, placed.scope, placed.lease_name
    FROM placed
   WHERE placed.version < placed.current_version
     -- One row each, and no EXISTS: that the planner may answer by reading all of them into a table.
     AND CASE placed.scope
           WHEN 'item' THEN (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'item' AND p.claimed_by IS NULL AND p.target = placed.target LIMIT 1)
           WHEN 'cluster' THEN (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'cluster' AND p.target = placed.target AND p.lease_name = placed.lease_name LIMIT 1)
           ELSE (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = placed.target LIMIT 1)
         END
   ORDER BY placed.target, placed.version
   LIMIT 10000;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_former_terms() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_former_terms() TO leasehold_executor;
