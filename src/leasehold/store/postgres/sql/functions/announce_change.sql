-- Announce that this transaction changes rows that leaders read, and return the timestamp for those rows.
-- Locks: one shared advisory lock until commit. Its key is the second in which this transaction began. No
-- writer waits for it; read_open_writers reads these locks.
-- Always take the timestamp from this function, because it reads the clock after the lock. Otherwise a leader
-- may miss the row.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.announce_change() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  -- Seconds since 2020 fit into a 32-bit key until 2088.
  PERFORM pg_advisory_xact_lock_shared(
    1818584932, floor(extract(epoch FROM now()) - extract(epoch FROM timestamptz '2020-01-01 00:00:00Z'))::integer);
  RETURN clock_timestamp();
END
$$;
REVOKE ALL ON FUNCTION leasehold.announce_change() FROM PUBLIC;
