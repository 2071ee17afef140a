-- Whether the times of a lease can have been written by a clock that shows p_now at present; see repair_lease_times.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.are_lease_times_possible(p_lease leasehold.leases, p_now timestamptz)
RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_lease.renewed_at <= p_now
     AND p_lease.expires_at <= p_now + pg_catalog.make_interval(secs => p_lease.lease_seconds)
$$;
REVOKE ALL ON FUNCTION leasehold.are_lease_times_possible(leasehold.leases, timestamptz) FROM PUBLIC;
