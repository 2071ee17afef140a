-- End reasons of a stream to stand still, and make the rows due that it has moved to the end of one of them, if that is still to
-- come. In a pipeline these may be several rows: the head, and rows that await their confirmation. Where another reason
-- stands, advance_streams moves the row that leads to the stream again.
-- Locks: the pending rows; it waits for them, because a row that it passed over would keep the time of the former pause. The caller
-- has locked the lease row. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.end_stream_pauses(
  p_lease leasehold.leases, p_kind text, p_names text[], p_now timestamptz
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, leasehold, pg_temp AS $$
  WITH ended AS (
    DELETE FROM leasehold.stream_pauses s
     WHERE s.lease_name = p_lease.lease_name AND s.kind = p_kind AND s.name = ANY (p_names)
    RETURNING s.paused_until
  )
  UPDATE leasehold.outbox_pending p SET due_at = p_now
   WHERE p.due_at > p_now AND p.due_at < 'infinity' AND p.due_at IN (SELECT ended.paused_until FROM ended) AND p.intent_id IN (
     -- No row after the first 200 can be one of them; see is_stream_begun.
     SELECT first.intent_id FROM leasehold.outbox_pending first
      WHERE first.scope = 'stream' AND first.target = p_lease.target AND first.stream = p_lease.stream
      ORDER BY first.stream_seq LIMIT 200)
$$;
REVOKE ALL ON FUNCTION leasehold.end_stream_pauses(leasehold.leases, text, text[], timestamptz) FROM PUBLIC;
