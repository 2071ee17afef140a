-- Count the streams of each target that an instance with a free slot could claim now, up to p_streams_max of each: those whose
-- head is due, and those whose holder's time is over. Targets without one are left out. A holder whose slots are all taken ends
-- as many turns as streams wait, see HeldStreams.end_turns.
-- Walks the index of claimable heads as a full claim does (claim_streams), and that of expired leases.
-- Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.waiting_streams(p_targets text[], p_streams_max integer)
RETURNS TABLE (target text, waiting integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  PERFORM leasehold.require_between('p_streams_max', p_streams_max, 1, 10000);
  RETURN QUERY
  SELECT asked.target, counted.streams
    FROM unnest(p_targets) AS asked (target)
   CROSS JOIN LATERAL (
     SELECT count(*)::integer AS streams FROM (
       (SELECT FROM generate_series(0, 3) AS level
         CROSS JOIN LATERAL (
           SELECT FROM leasehold.outbox_pending p JOIN leasehold.leases l ON l.lease_name = p.lease_name
            WHERE p.scope = 'stream' AND p.is_claimable AND p.target = asked.target AND p.priority = level::smallint
              AND p.due_at <= v_now AND l.expires_at = '-infinity'
            ORDER BY p.due_at, p.intent_id LIMIT p_streams_max) AS due
         LIMIT p_streams_max)
        UNION ALL
       (SELECT FROM leasehold.leases l
         WHERE l.target = asked.target AND l.stream IS NOT NULL AND l.expires_at > '-infinity' AND l.expires_at <= v_now
           AND (l.grace_expires_at <= v_now OR NOT leasehold.is_stream_begun(l.target, l.stream))
         ORDER BY l.expires_at LIMIT p_streams_max)
        LIMIT p_streams_max) AS found) AS counted
   WHERE counted.streams > 0;
END
$$;
REVOKE ALL ON FUNCTION leasehold.waiting_streams(text[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.waiting_streams(text[], integer) TO leasehold_executor;
