-- Return the rows of a stream's pipeline that are asked about together: those under one contract that are due, in the order of the
-- stream. All but the first must fit into p_bytes_max. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.due_confirmations(
  p_target text, p_stream text, p_version integer, p_bytes_max bigint, p_now timestamptz
) RETURNS TABLE (place bigint, intent_id uuid, due_at timestamptz, is_claimable boolean)
LANGUAGE sql STABLE AS $$
  SELECT awaited.place, awaited.intent_id, awaited.due_at, awaited.is_claimable
    FROM (SELECT p.intent_id, p.due_at, p.is_claimable, row_number() OVER (ORDER BY p.stream_seq) AS place,
                 sum(p.content_bytes) OVER (ORDER BY p.stream_seq) AS bytes
            FROM (SELECT p.intent_id, p.due_at, p.is_claimable, p.stream_seq, p.content_bytes FROM leasehold.outbox_pending p
                   WHERE p.scope = 'stream' AND p.awaits_confirmation AND p.target = p_target AND p.stream = p_stream
                     AND p.due_at <= p_now AND p.contract_version = p_version
                   ORDER BY p.stream_seq LIMIT 100) AS p) AS awaited
   WHERE awaited.place = 1 OR awaited.bytes <= p_bytes_max
$$;
REVOKE ALL ON FUNCTION leasehold.due_confirmations(text, text, integer, bigint, timestamptz) FROM PUBLIC;
