-- Look at streams: the lease of each, its head, and what its pipeline awaits (read_pipeline). Reads only.
-- The head is the first row that does not await its confirmation in a pipeline (awaits_confirmation). head_action says what is
-- to be done with it when it is due. is_begun: a call of the stream is in flight. room says how many more rows may be
-- called: a whole batch, unless the stream has a pipeline or still awaits confirmations from a former one.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.look_at_streams(p_lease_names text[], p_now timestamptz) RETURNS TABLE (
  lease_name text, lease_epoch bigint, expires_at timestamptz, grace_expires_at timestamptz, target text, stream text,
  paused_until timestamptz, head_id uuid, head_seq bigint, head_due_at timestamptz, head_deadline_at timestamptz,
  head_version integer, head_action text, head_bytes integer, is_head_claimable boolean,
  awaited_id uuid, awaited_due_at timestamptz, awaited_version integer, awaited_bytes integer, is_awaited_claimable boolean,
  is_begun boolean, batch_max integer, room integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_pipelined text[] := ARRAY(SELECT DISTINCT c.target FROM leasehold.contracts c WHERE c.pipeline_max > 1);
BEGIN
  RETURN QUERY
  SELECT l.lease_name, l.lease_epoch, l.expires_at, l.grace_expires_at, l.target, l.stream, l.paused_until,
         head.intent_id, head.stream_seq, head.due_at, head.deadline_at, head.contract_version,
         leasehold.head_action(head.last_state, head.attempt_count, head.deadline_at, p_now),
         head.content_bytes, head.is_claimable,
         awaited.intent_id, awaited.due_at, awaited.contract_version, awaited.content_bytes, awaited.is_claimable,
         coalesce(CASE WHEN l.target = ANY (v_pipelined) THEN leasehold.is_stream_begun(l.target, l.stream)
                       WHEN head.intent_id IS NULL THEN false
                       WHEN c.batch_max = 1 THEN head.begun_at IS NOT NULL
                       ELSE leasehold.is_stream_begun(l.target, l.stream, c.batch_max) END, false),
         c.batch_max,
         CASE WHEN c.pipeline_max = 1 AND coalesce(awaited.rows, 0) = 0 THEN c.batch_max
              ELSE c.pipeline_max - coalesce(awaited.rows, 0) END
    FROM leasehold.leases l
    LEFT JOIN LATERAL (
      SELECT p.* FROM leasehold.outbox_pending p
       WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream AND NOT p.awaits_confirmation
       ORDER BY p.stream_seq LIMIT 1) AS head ON true
    LEFT JOIN leasehold.contracts c ON c.target = l.target AND c.version = head.contract_version
    LEFT JOIN LATERAL leasehold.read_pipeline(l.target, l.stream, v_pipelined) AS awaited ON true
   WHERE l.lease_name = ANY (p_lease_names);
END
$$;
REVOKE ALL ON FUNCTION leasehold.look_at_streams(text[], timestamptz) FROM PUBLIC;
