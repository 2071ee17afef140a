-- Read one stream, blocked or not. head, waiting, submitted, pauses and state are those of the view blocked_streams; if the stream is
-- not blocked, the state is in_flight (a call for the head is being made), waiting (the head has not been tried), confirming
-- (there is no head, but submitted intents await their confirmation) or empty. in_flight_since is when a call began that has
-- not ended, also in a stream that is blocked. The holder is NULL if nobody holds the stream. If the holder has died, others
-- take the stream after grace_expires_at while in_flight_since is set, else after lease_expires_at. No row: no such stream.
-- Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.read_stream(p_target text, p_stream text)
RETURNS TABLE (
  target text, stream text, head uuid, state text, reason text, blocked_since timestamptz, paused_until timestamptz,
  paused_by text, paused_for uuid, attempts integer, due_at timestamptz, waiting bigint, submitted bigint,
  pauses jsonb, in_flight_since timestamptz, holder_id text, lease_epoch bigint, lease_expires_at timestamptz, grace_expires_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_name('p_target', p_target, 64);
  PERFORM leasehold.require_name('p_stream', p_stream, 255);
  RETURN QUERY
  SELECT l.target, l.stream, head.intent_id,
         coalesce(blocked.state,
                  CASE WHEN begun.at IS NOT NULL THEN 'in_flight' WHEN head.intent_id IS NOT NULL THEN 'waiting'
                       WHEN pipeline.submitted > 0 THEN 'confirming' ELSE 'empty' END),
         blocked.reason, blocked.blocked_since, blocked.paused_until, blocked.paused_by, blocked.paused_for,
         head.attempt_count, head.due_at,
         (SELECT count(*) FROM (
            SELECT FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream
               AND p.stream_seq > head.stream_seq AND NOT p.awaits_confirmation LIMIT 1000) AS behind),
         pipeline.submitted, coalesce(blocked.pauses, '[]'), begun.at,
         CASE WHEN l.expires_at > '-infinity' THEN l.holder_id END,
         CASE WHEN l.expires_at > '-infinity' THEN l.lease_epoch END,
         nullif(l.expires_at, '-infinity'), CASE WHEN l.expires_at > '-infinity' THEN l.grace_expires_at END
    FROM leasehold.leases l
    LEFT JOIN LATERAL (
      SELECT p.intent_id, p.stream_seq, p.attempt_count, p.due_at FROM leasehold.outbox_pending p
       WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream AND NOT p.awaits_confirmation
       ORDER BY p.stream_seq LIMIT 1) AS head ON true
   CROSS JOIN LATERAL (
      SELECT count(*) AS submitted FROM leasehold.outbox_pending p
       WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream AND p.awaits_confirmation) AS pipeline
   CROSS JOIN LATERAL (
      -- See is_stream_begun for the number of rows.
      SELECT min(first.begun_at) AS at
        FROM (SELECT p.begun_at FROM leasehold.outbox_pending p
               WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream
               ORDER BY p.stream_seq LIMIT 200) AS first) AS begun
    LEFT JOIN LATERAL (
      SELECT b.* FROM leasehold.blocked_streams b WHERE b.target = p_target AND b.stream = p_stream LIMIT 1) AS blocked ON true
   WHERE l.lease_name = leasehold.stream_lease_name(p_target, p_stream) AND l.stream IS NOT NULL;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_stream(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_stream(text, text) TO leasehold_operator, leasehold_readonly, leasehold_auditor;
