-- Give a lease to a new holder, with epoch + 1, if it may be taken now; NULL if not. A lease may be taken after its
-- second expiry, or after the first if no call is in flight under it. Calls in flight are put in doubt.
-- Locks: the lease row, which the caller has locked FOR UPDATE; then begun rows by id.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.take_lease(
  p_lease_name text, p_holder_id text, p_lease_seconds double precision, p_grace_seconds double precision
) RETURNS leasehold.leases
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_replaced_holder text := (SELECT holder_id FROM leasehold.leases WHERE lease_name = p_lease_name);
  v_taken leasehold.leases;
BEGIN
  UPDATE leasehold.leases l
     SET holder_id = p_holder_id, lease_epoch = l.lease_epoch + 1, acquired_at = v_now, renewed_at = v_now,
         expires_at = v_now + make_interval(secs => p_lease_seconds),
         grace_expires_at = v_now + make_interval(secs => p_lease_seconds + p_grace_seconds),
         yield_seconds = NULL, lease_seconds = p_lease_seconds, grace_seconds = p_grace_seconds
   WHERE l.lease_name = p_lease_name AND l.expires_at <= v_now
     AND (l.grace_expires_at <= v_now
          OR NOT EXISTS (SELECT FROM leasehold.outbox_pending p
                          WHERE p.lease_name = p_lease_name AND p.begun_epoch IS NOT NULL))
  RETURNING l.* INTO v_taken;
  IF FOUND THEN
    PERFORM leasehold.put_calls_in_doubt(p_lease_name, v_replaced_holder);
  END IF;
  RETURN v_taken;
END
$$;
REVOKE ALL ON FUNCTION leasehold.take_lease(text, text, double precision, double precision) FROM PUBLIC;
