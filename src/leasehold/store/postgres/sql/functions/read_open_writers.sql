-- Read which transactions may still commit rows that leaders read, and when each began, to the second. seen_at is the
-- time before they were read. A row that becomes visible later has a timestamp after seen_at, or one of these
-- transactions wrote it. So a reader has seen every change up to seen_at when it has read them once, and has read
-- again, after one of these transactions has ended, what changed since that one began.
-- The clock is read first and then the locks of announce_change: a writer that is not seen takes a later timestamp.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.read_open_writers(OUT seen_at timestamptz, OUT writers text[], OUT began_at timestamptz[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  seen_at := clock_timestamp();
  SELECT coalesce(array_agg(l.virtualtransaction), '{}'),
         coalesce(array_agg(timestamptz '2020-01-01 00:00:00Z' + make_interval(secs => l.objid::bigint)), '{}')
    INTO writers, began_at
    FROM pg_locks l
   WHERE l.locktype = 'advisory' AND l.classid = 1818584932 AND l.objsubid = 2
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_open_writers() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_open_writers() TO leasehold_executor;
