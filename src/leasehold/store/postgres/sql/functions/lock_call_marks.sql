-- Hold still which calls may be in flight under a lease, until the end of the transaction. Who hands out calls
-- and who intervenes meet here: neither acts on what the other is about to change.
-- Locks: an advisory lock in the lease's name, as long as the transaction. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_call_marks(p_lease_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  -- Two names that share a number wait for each other, and no more comes of it.
  PERFORM pg_advisory_xact_lock(1818584933, hashtext(p_lease_name));
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_call_marks(text) FROM PUBLIC;
