-- Return which of these streams an enqueuer may give a head that can be claimed: those without a pending row, except rows
-- that await their confirmation (awaits_confirmation), unless a person must resume them. In the others the new rows wait
-- behind the head, and whoever finishes the head goes on with them.
-- The caller has locked the rows of the streams and asks in a new statement. A transaction that is not READ COMMITTED
-- cannot see what was finished since it began. All streams are idle for it: a head too many costs a claimer one look,
-- but without a head a stream stands still.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.idle_streams(p_lease_names text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN p_lease_names;
  END IF;
  RETURN ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (p_lease_names) AND l.paused_until IS DISTINCT FROM 'infinity'
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream
               AND NOT p.awaits_confirmation
             ORDER BY p.stream_seq LIMIT 1) IS NULL);
END
$$;
REVOKE ALL ON FUNCTION leasehold.idle_streams(text[]) FROM PUBLIC;
