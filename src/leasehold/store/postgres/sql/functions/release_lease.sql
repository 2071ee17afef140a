-- Let go of a lease that is ours under this epoch; false when it is not (any more). The epoch stays.
-- Locks: the lease row FOR NO KEY UPDATE; then the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_lease(p_lease_name text, p_holder_id text, p_lease_epoch bigint)
RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT verdict = 'released'
    FROM leasehold.release_leases(p_holder_id, ARRAY[p_lease_name], ARRAY[p_lease_epoch])
$$;
REVOKE ALL ON FUNCTION leasehold.release_lease(text, text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_lease(text, text, bigint) TO leasehold_executor;
