-- The moment before which no open transaction can still stamp a scheduled row: a cursor may advance
-- up to it, not past it. Locks nothing. Read in this order: first the clock, then the open writers
-- (who hold the lock of announce_change); one that is not seen yet will stamp later than the clock.
CREATE OR REPLACE FUNCTION leasehold.change_horizon() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_oldest_writer_began timestamptz;
BEGIN
  SELECT min(timestamptz '2020-01-01 00:00:00Z' + make_interval(secs => objid::bigint))
    INTO v_oldest_writer_began
    FROM pg_locks
   WHERE locktype = 'advisory' AND classid = 1818584932 AND objsubid = 2
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
  RETURN least(v_now, v_oldest_writer_began);
END
$$;
REVOKE ALL ON FUNCTION leasehold.change_horizon() FROM PUBLIC;
