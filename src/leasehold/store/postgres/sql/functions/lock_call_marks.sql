-- Lock the call marks of a lease until the end of the transaction. The leader takes this lock to mark calls,
-- and an operator's function takes it to intervene. So neither acts on marks that the other is about to change.
-- Locks: an advisory lock on the lease name until the end of the transaction.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_call_marks(p_lease_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  -- Two names with the same hash only wait for each other.
  PERFORM pg_advisory_xact_lock(1818584933, hashtext(p_lease_name));
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_call_marks(text) FROM PUBLIC;
