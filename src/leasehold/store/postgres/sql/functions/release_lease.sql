-- Let go of a lease that is ours under this epoch; false when it is not (any more). The epoch stays.
-- Whoever waits for it is told on the channel leasehold_lease, with the lease's name: a hint, as every
-- NOTIFY, which spares a successor the wait until it asks by itself.
-- Locks: the lease row FOR NO KEY UPDATE; then the clock. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_lease(p_lease_name text, p_holder_id text, p_lease_epoch bigint)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_is_released boolean := (SELECT verdict = 'released' FROM leasehold.release_leases(
    p_holder_id, ARRAY[p_lease_name], ARRAY[p_lease_epoch]));
BEGIN
  IF v_is_released THEN
    PERFORM pg_notify('leasehold_lease', p_lease_name);
  END IF;
  RETURN v_is_released;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_lease(text, text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_lease(text, text, bigint) TO leasehold_executor;
