-- Read a page of the view blocked_streams: up to p_limit streams of these targets (NULL: all targets), in the order of target and
-- stream, after a target and stream (NULL: from the beginning). The cost follows the page, not the number of streams.
-- Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.read_blocked_streams(
  p_limit integer, p_targets text[] DEFAULT NULL, p_after_target text DEFAULT NULL, p_after_stream text DEFAULT NULL
) RETURNS TABLE (
  target text, stream text, head uuid, state text, reason text, blocked_since timestamptz, paused_until timestamptz,
  paused_by text, paused_for uuid, attempts integer, due_at timestamptz, waiting bigint, submitted bigint,
  pauses jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_target text;
  v_after text COLLATE "C";
  v_streams text[];
  v_left integer := p_limit;
BEGIN
  IF num_nulls(p_after_target, p_after_stream) = 1 THEN
    RAISE EXCEPTION 'p_after_target and p_after_stream must be given together' USING ERRCODE = '22023';
  ELSIF p_after_target IS NOT NULL THEN
    PERFORM leasehold.require_name('p_after_target', p_after_target, 64);
    PERFORM leasehold.require_name('p_after_stream', p_after_stream, 255);
  END IF;
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 10000);
  PERFORM leasehold.require_list('p_targets', coalesce(p_targets, '{}'), 1000);
  FOR v_target IN
    SELECT f.target FROM leasehold.stream_floors f
     WHERE (p_targets IS NULL OR f.target = ANY (p_targets)) AND f.target >= coalesce(p_after_target, '') COLLATE "C"
     ORDER BY f.target
  LOOP
    v_after := CASE WHEN v_target = p_after_target THEN p_after_stream ELSE '' END;
    v_streams := ARRAY(
      SELECT found.stream FROM (
        (SELECT l.stream FROM leasehold.leases l
          WHERE l.target = v_target AND l.stream > v_after AND l.paused_since IS NOT NULL AND l.paused_until > v_now
          ORDER BY l.stream LIMIT v_left)
        UNION
        (SELECT p.stream FROM leasehold.outbox_pending p
          WHERE p.scope = 'stream' AND (p.last_state IS NOT NULL OR p.deferred_since IS NOT NULL) AND p.target = v_target AND p.stream > v_after
            AND NOT p.awaits_confirmation
            AND (SELECT true FROM leasehold.outbox_pending earlier
                  WHERE earlier.scope = 'stream' AND earlier.target = p.target AND earlier.stream = p.stream
                    AND earlier.stream_seq < p.stream_seq AND NOT earlier.awaits_confirmation
                  ORDER BY earlier.stream_seq LIMIT 1) IS NULL
          ORDER BY p.stream LIMIT v_left)) AS found
       ORDER BY found.stream LIMIT v_left);
    RETURN QUERY
    SELECT blocked.* FROM unnest(v_streams) AS page (stream)
     CROSS JOIN LATERAL (
       SELECT b.* FROM leasehold.blocked_streams b WHERE b.target = v_target AND b.stream = page.stream LIMIT 1) AS blocked
     ORDER BY blocked.stream;
    v_left := v_left - cardinality(v_streams);
    EXIT WHEN v_left <= 0;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_blocked_streams(integer, text[], text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_blocked_streams(integer, text[], text, text)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
