-- Count the unfinished intents of a target, but no further than p_limit. The count starts at the low-water marks in
-- p_due_from, one per priority: what is due earlier is dead. It returns the next marks: where the rows of each priority
-- begin, but at most p_mark_max. Streams have no marks, for their rows have no index by due time.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.queue_depth(
  p_target text, p_limit integer, p_due_from timestamptz[], p_mark_max timestamptz,
  OUT depth bigint, OUT due_from timestamptz[]
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease_names text[] := ARRAY(SELECT DISTINCT c.lease_name FROM leasehold.contracts c
                                 WHERE c.target = p_target AND c.scope = 'cluster');
BEGIN
  due_from := ARRAY(
    SELECT least(
             p_mark_max,
             (SELECT p.due_at FROM leasehold.outbox_pending p
               WHERE p.scope = 'item' AND p.target = p_target AND p.priority = level::smallint
                 AND p.due_at >= p_due_from[level + 1]
               ORDER BY p.due_at LIMIT 1),
             (SELECT min(first.due_at)
                FROM unnest(v_lease_names) AS lease (name)
               CROSS JOIN LATERAL (
                 SELECT p.due_at FROM leasehold.outbox_pending p
                  WHERE p.scope = 'cluster' AND p.target = p_target AND p.lease_name = lease.name
                    AND p.priority = level::smallint AND p.due_at >= p_due_from[level + 1]
                  ORDER BY p.due_at LIMIT 1) AS first))
      FROM generate_series(0, 3) AS level ORDER BY level);
  -- One part for each index that leads from a target to its rows; together they hold every row once. The order is only
  -- there to name the index by due time.
  SELECT count(*) INTO depth FROM (
    SELECT FROM (
      (SELECT FROM generate_series(0, 3) AS level
        CROSS JOIN LATERAL (
          SELECT FROM leasehold.outbox_pending p
           WHERE p.scope = 'item' AND p.target = p_target AND p.priority = level::smallint
             AND p.due_at >= due_from[level + 1]
           ORDER BY p.due_at LIMIT p_limit) AS item)
      UNION ALL
      (SELECT FROM leasehold.outbox_pending p WHERE p.target = p_target AND p.scope = 'stream')
      UNION ALL
      (SELECT FROM unnest(v_lease_names) AS lease (name)
        CROSS JOIN generate_series(0, 3) AS level
        CROSS JOIN LATERAL (
          SELECT FROM leasehold.outbox_pending p
           WHERE p.scope = 'cluster' AND p.target = p_target AND p.lease_name = lease.name
             AND p.priority = level::smallint AND p.due_at >= due_from[level + 1]
           ORDER BY p.due_at LIMIT p_limit) AS leased)) AS every
    LIMIT p_limit) AS counted;
END
$$;
REVOKE ALL ON FUNCTION leasehold.queue_depth(text, integer, timestamptz[], timestamptz) FROM PUBLIC;
