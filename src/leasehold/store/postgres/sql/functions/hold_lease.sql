-- Fence the caller's own transaction: keep a lease until the transaction ends, or raise that it is lost. Call
-- it first in the transaction. A takeover waits for the commit, and calls after a takeover raise P7002.
-- Locks: the lease row FOR KEY SHARE. Reads the clock after that.
-- Raises: P7002 if the lease is lost, 22023 for bad arguments or an isolation level other than READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.hold_lease(p_lease_name text, p_holder_id text, p_lease_epoch bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
END
$$;
REVOKE ALL ON FUNCTION leasehold.hold_lease(text, text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.hold_lease(text, text, bigint) TO leasehold_executor;
