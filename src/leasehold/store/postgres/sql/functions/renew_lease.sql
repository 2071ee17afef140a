-- Extend a lease that this holder has under this epoch, or raise that it is lost. The epoch stays.
-- Locks: the lease row FOR NO KEY UPDATE, so it does not wait for fenced writes in flight. Reads the clock after that.
-- Raises: P7002 if the lease is lost, P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_lease(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_lease_seconds double precision,
  p_grace_seconds double precision DEFAULT 0
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_renewed record;
BEGIN
  PERFORM leasehold.require_name('p_lease_name', p_lease_name, 400);
  PERFORM leasehold.require_between('p_lease_epoch', p_lease_epoch, 1, 9e15);
  PERFORM FROM leasehold.leases l WHERE l.lease_name = p_lease_name FOR NO KEY UPDATE;  -- renew_leases would pass over it
  SELECT * INTO v_renewed FROM leasehold.renew_leases(
    p_holder_id, ARRAY[p_lease_name], ARRAY[p_lease_epoch], p_lease_seconds, p_grace_seconds);
  IF v_renewed.verdict <> 'renewed' THEN
    RAISE EXCEPTION 'lease % (holder %, epoch %) is lost', p_lease_name, p_holder_id, p_lease_epoch
      USING ERRCODE = 'P7002', HINT = 'Stop acting under it; acquire it anew.';
  END IF;
  RETURN v_renewed.expires_at;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_lease(text, text, bigint, double precision, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_lease(text, text, bigint, double precision, double precision)
  TO leasehold_executor;
