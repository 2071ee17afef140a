-- Read which transactions have an id, because they have written or locked something, and have not ended; all of the
-- server but the caller's own. seen_at is the time before they were read. A row that becomes visible later was written by
-- one of them, or by a transaction that took its id after seen_at.
-- Each holds a lock on its own id. A snapshot would not do: it lists an open transaction only if one with a higher id has
-- ended. A commit is visible before the lock is gone, so a transaction that is gone has nothing left to show.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.read_open_transactions(OUT seen_at timestamptz, OUT transaction_ids bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  seen_at := clock_timestamp();
  transaction_ids := ARRAY(
    SELECT l.transactionid::text::bigint FROM pg_locks l
     WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
       AND l.pid IS DISTINCT FROM pg_backend_pid());
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_open_transactions() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_open_transactions() TO leasehold_executor;
