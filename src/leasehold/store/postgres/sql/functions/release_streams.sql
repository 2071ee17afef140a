-- Release stream leases, at shutdown or to give other instances their share. One verdict each: released or
-- lease_lost.
-- Locks: the lease rows FOR NO KEY UPDATE, by name. Reads the clock after that.
-- Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_streams(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[]
) RETURNS TABLE (lease_name text, verdict text)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT * FROM leasehold.release_leases(p_holder_id, p_lease_names, p_lease_epochs)
$$;
REVOKE ALL ON FUNCTION leasehold.release_streams(text, text[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_streams(text, text[], bigint[]) TO leasehold_executor;
