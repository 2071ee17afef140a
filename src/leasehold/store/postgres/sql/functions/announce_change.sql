-- Say that this transaction changes scheduled rows, and return the time to stamp them with.
-- Locks: one shared advisory lock until commit, whose key is the second this transaction began.
-- No writer waits for it; change_horizon reads from it how far a cursor may advance. Take the stamp
-- only from here, after the lock: that is what makes the horizon safe.
CREATE OR REPLACE FUNCTION leasehold.announce_change() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  -- Seconds since 2020 fit in the 32 bits of a key until 2088.
  PERFORM pg_advisory_xact_lock_shared(
    1818584932, floor(extract(epoch FROM now()) - extract(epoch FROM timestamptz '2020-01-01 00:00:00Z'))::integer);
  RETURN clock_timestamp();
END
$$;
REVOKE ALL ON FUNCTION leasehold.announce_change() FROM PUBLIC;
