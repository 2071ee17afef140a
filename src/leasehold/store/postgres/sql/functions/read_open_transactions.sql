-- Read which transactions have an id, because they have written or locked something, and have not ended; all of the
-- server, for nothing tells those of one database apart. seen_at is the time before they were read. A row that becomes
-- visible later was written by one of them, or by a transaction that took its id after seen_at.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.read_open_transactions(OUT seen_at timestamptz, OUT transaction_ids bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  seen_at := clock_timestamp();
  transaction_ids := ARRAY(SELECT pg_snapshot_xip(pg_current_snapshot())::text::bigint);
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_open_transactions() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_open_transactions() TO leasehold_executor;
