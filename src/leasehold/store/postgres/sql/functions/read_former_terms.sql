-- Return the former scopes and groups under which intents are still pending. When a target gets another scope
-- or group, the intents accepted before keep the old one, and somebody must finish them there. version is the
-- newest version with that scope and group.
-- Locks nothing. Raises nothing.
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
     -- A subquery with LIMIT 1, not EXISTS: for EXISTS the planner may read all pending rows into a hash table.
     AND CASE placed.scope
           WHEN 'item' THEN (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'item' AND p.target = placed.target LIMIT 1)
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
