-- Fence a transaction of your own: hold a lease still until it ends, or learn that the lease is lost.
-- Call it first; whoever takes the lease over waits for your commit, and after that you get P7002.
-- Locks: the lease row FOR KEY SHARE; then the clock. Raises: P7002 when the lease is lost; 22023, also
-- outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.hold_lease(p_lease_name text, p_holder_id text, p_lease_epoch bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
END
$$;
REVOKE ALL ON FUNCTION leasehold.hold_lease(text, text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.hold_lease(text, text, bigint) TO leasehold_executor;
