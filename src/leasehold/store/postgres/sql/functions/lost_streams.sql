-- Return one row with the state lease_lost for each of the given leases that is not among those that are held.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lost_streams(p_lease_names text[], p_lease_epochs bigint[], p_held text[])
RETURNS SETOF leasehold.stream_work
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lost leasehold.stream_work;
BEGIN
  v_lost.stream_state := 'lease_lost';
  v_lost.is_held := false;
  FOR v_lost.lease_name, v_lost.lease_epoch IN
    SELECT asked.lease_name, asked.lease_epoch FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
     -- Hashed; <> ALL would compare each name with all others.
     WHERE asked.lease_name NOT IN (SELECT unnest(p_held))
  LOOP
    RETURN NEXT v_lost;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lost_streams(text[], bigint[], text[]) FROM PUBLIC;
