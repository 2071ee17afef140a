-- Whether a call of this stream is in flight: one of its first p_rows rows is begun. A batch is begun in order and under one
-- contract, behind the rows that await their confirmation, so no row after the first 200 can be: there are at most 100 of each.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.is_stream_begun(p_target text, p_stream text, p_rows integer DEFAULT 200) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT coalesce(bool_or(first.begun_at IS NOT NULL), false)
    FROM (SELECT p.begun_at FROM leasehold.outbox_pending p
           WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream
           ORDER BY p.stream_seq LIMIT p_rows) AS first
$$;
REVOKE ALL ON FUNCTION leasehold.is_stream_begun(text, text, integer) FROM PUBLIC;
