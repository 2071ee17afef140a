-- Count the unfinished intents of a target, but no further than p_limit. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.queue_depth(p_target text, p_limit integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_depth bigint;
BEGIN
  -- One part for each index that leads from a target to its rows; together they hold every row once.
  SELECT count(*) INTO v_depth FROM (
    SELECT FROM (
      (SELECT FROM leasehold.outbox_pending p WHERE p.target = p_target AND p.scope = 'item')
      UNION ALL
      (SELECT FROM leasehold.outbox_pending p WHERE p.target = p_target AND p.scope = 'stream')
      UNION ALL
      (SELECT FROM leasehold.outbox_pending p WHERE p.target = p_target AND p.scope = 'cluster')) AS every
    LIMIT p_limit) AS counted;
  RETURN v_depth;
END
$$;
REVOKE ALL ON FUNCTION leasehold.queue_depth(text, integer) FROM PUBLIC;
