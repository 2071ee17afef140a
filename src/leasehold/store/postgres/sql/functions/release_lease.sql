-- Release a lease that this holder has under this epoch; false if it has it no longer. The epoch stays. NOTIFY on the
-- channel leasehold_lease, with the name of the lease, tells followers that they can stand for election at once.
-- Locks: the lease row FOR NO KEY UPDATE. Reads the clock after that.
-- Raises: 22023.
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
