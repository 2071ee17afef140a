-- A pause for a time ends early: make the rows of the stream due that it has moved to its end. p_lease is the lease as it was
-- before. In a pipeline these may be several rows: the head, and rows that await their confirmation.
-- Locks: the pending rows. The caller has locked the lease row. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.undo_pause(p_lease leasehold.leases, p_now timestamptz) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, leasehold, pg_temp AS $$
  UPDATE leasehold.outbox_pending p SET due_at = p_now
   WHERE p.due_at = p_lease.paused_until AND p_lease.paused_until < 'infinity' AND p.intent_id IN (
     -- No row after the first 200 can be one of them; see is_stream_begun.
     SELECT first.intent_id FROM leasehold.outbox_pending first
      WHERE first.scope = 'stream' AND first.target = p_lease.target AND first.stream = p_lease.stream
      ORDER BY first.stream_seq LIMIT 200)
$$;
REVOKE ALL ON FUNCTION leasehold.undo_pause(leasehold.leases, timestamptz) FROM PUBLIC;
