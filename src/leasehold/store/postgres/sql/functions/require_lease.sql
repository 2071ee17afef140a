-- Keep a lease for the rest of this transaction, or raise that it is lost. With p_in_grace, a holder that was
-- slow but not replaced may still record calls that it had begun.
-- Locks: the lease row FOR KEY SHARE. Renewals continue; a takeover waits until this transaction ends. Reads
-- the clock after the lock.
-- Raises: P7002 if the lease is lost, 22023 for bad arguments or an isolation level other than READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.require_lease(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_in_grace boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_held leasehold.leases;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_name('p_lease_name', p_lease_name, 400);
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_between('p_lease_epoch', p_lease_epoch, 1, 9e15);
  SELECT * INTO v_held FROM leasehold.leases
   WHERE lease_name = p_lease_name AND holder_id = p_holder_id AND lease_epoch = p_lease_epoch
     FOR KEY SHARE;
  IF NOT FOUND
     OR (CASE WHEN p_in_grace THEN v_held.grace_expires_at ELSE v_held.expires_at END) <= clock_timestamp() THEN
    RAISE EXCEPTION 'lease % (holder %, epoch %) is lost', p_lease_name, p_holder_id, p_lease_epoch
      USING ERRCODE = 'P7002', HINT = 'Stop acting under this lease and drop the result.';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_lease(text, text, bigint, boolean) FROM PUBLIC;
