-- The streams of these targets that have unfinished work, with the head of each: its number and when
-- it is due. Walks from stream to stream over the index, so its cost is per stream, not per row; at
-- most p_limit streams a target. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.active_streams(p_targets text[], p_limit integer)
RETURNS TABLE (target text, stream text, lease_name text, head_due_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT asked.target, walk.stream, walk.lease_name, walk.due_at
    FROM unnest(p_targets) AS asked (target)
   CROSS JOIN LATERAL (
     WITH RECURSIVE step AS (
       (SELECT p.stream, p.lease_name, p.due_at FROM leasehold.outbox_pending p
         WHERE p.scope = 'stream' AND p.target = asked.target
         ORDER BY p.stream, p.stream_seq LIMIT 1)
       UNION ALL
       SELECT next.* FROM step CROSS JOIN LATERAL (
         SELECT p.stream, p.lease_name, p.due_at FROM leasehold.outbox_pending p
          WHERE p.scope = 'stream' AND p.target = asked.target AND p.stream > step.stream
          ORDER BY p.stream, p.stream_seq LIMIT 1) AS next
     )
     SELECT * FROM step LIMIT p_limit) AS walk
$$;
REVOKE ALL ON FUNCTION leasehold.active_streams(text[], integer) FROM PUBLIC;
