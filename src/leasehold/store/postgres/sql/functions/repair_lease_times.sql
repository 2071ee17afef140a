-- Correct a lease whose times are impossible on the present clock: it was renewed in the future, or it expires later
-- than the time that it was granted for. Then the database's clock was set back, and without the correction
-- nobody could take the lease of a dead holder before the old expiry. The lease then ends as if it had been renewed
-- now. That is safe: the holder counts its trust on its own clock, from before it asked, so its trust ends earlier.
-- A live holder notices nothing; its next renewal sets all times anew. No time is ever moved to a later one.
-- Locks: the lease row FOR NO KEY UPDATE, SKIP LOCKED, only if its times are impossible; then reads the clock. Never
-- waits: whoever has the row locked is renewing, taking or correcting it.
-- Raises: nothing. A warning says what was corrected.
CREATE OR REPLACE FUNCTION leasehold.repair_lease_times(p_lease_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
  v_now timestamptz;
BEGIN
  SELECT * INTO v_lease FROM leasehold.leases WHERE lease_name = p_lease_name;
  IF NOT FOUND OR leasehold.are_lease_times_possible(v_lease, clock_timestamp()) THEN
    RETURN;
  END IF;
  SELECT * INTO v_lease FROM leasehold.leases WHERE lease_name = p_lease_name FOR NO KEY UPDATE SKIP LOCKED;
  v_now := clock_timestamp();
  IF NOT FOUND OR leasehold.are_lease_times_possible(v_lease, v_now) THEN
    RETURN;
  END IF;
  UPDATE leasehold.leases l
     SET acquired_at = least(l.acquired_at, v_now), renewed_at = least(l.renewed_at, v_now),
         expires_at = least(l.expires_at, v_now + make_interval(secs => l.lease_seconds)),
         grace_expires_at = least(l.grace_expires_at, v_now + make_interval(secs => l.lease_seconds + l.grace_seconds))
   WHERE l.lease_name = p_lease_name;
  RAISE WARNING 'the clock of the database was set back: lease % (holder %, epoch %) was renewed at %, and it is %',
    p_lease_name, v_lease.holder_id, v_lease.lease_epoch, v_lease.renewed_at, v_now;
END
$$;
REVOKE ALL ON FUNCTION leasehold.repair_lease_times(text) FROM PUBLIC;
