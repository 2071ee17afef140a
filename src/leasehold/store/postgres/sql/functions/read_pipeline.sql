-- Read what awaits its confirmation in a stream's pipeline: the row that has been due for longest, the size of the largest
-- content, and the number of rows, never more than 100. p_pipelined are the targets with pipelines: for others it reads nothing, also
-- inside a query that calls it for each stream. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.read_pipeline(p_target text, p_stream text, p_pipelined text[]) RETURNS TABLE (
  intent_id uuid, due_at timestamptz, contract_version integer, is_claimable boolean, content_bytes integer, rows integer)
LANGUAGE sql STABLE AS $$
  SELECT (array_agg(p.intent_id ORDER BY p.due_at, p.stream_seq))[1], min(p.due_at),
         (array_agg(p.contract_version ORDER BY p.due_at, p.stream_seq))[1],
         (array_agg(p.is_claimable ORDER BY p.due_at, p.stream_seq))[1], max(p.content_bytes), count(*)::integer
    FROM (SELECT p.* FROM leasehold.outbox_pending p
           WHERE p_target = ANY (p_pipelined)
             AND p.scope = 'stream' AND p.awaits_confirmation AND p.target = p_target AND p.stream = p_stream
           ORDER BY p.stream_seq LIMIT 100) AS p
$$;
REVOKE ALL ON FUNCTION leasehold.read_pipeline(text, text, text[]) FROM PUBLIC;
