-- Lock the given stream leases that this holder still has under the given epoch, and return their names. A lease in its
-- second phase still belongs to its holder if nobody has taken it. With p_to_begin only leases before their first expiry
-- count, and the lock is FOR KEY SHARE: renewals go on, a takeover waits.
-- Locks: the lease rows by name, FOR NO KEY UPDATE or FOR KEY SHARE. Reads the clock after that.
-- Raises: 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.lock_held_streams(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_to_begin boolean
) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_leases(p_holder_id, p_lease_names, p_lease_epochs);
  IF p_to_begin THEN
    PERFORM FROM leasehold.leases l WHERE l.lease_name = ANY (p_lease_names) ORDER BY l.lease_name FOR KEY SHARE;
  ELSE
    PERFORM FROM leasehold.leases l WHERE l.lease_name = ANY (p_lease_names) ORDER BY l.lease_name FOR NO KEY UPDATE;
  END IF;
  v_now := clock_timestamp();
  RETURN ARRAY(
    SELECT l.lease_name FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
      JOIN leasehold.leases l ON l.lease_name = asked.lease_name AND l.lease_epoch = asked.lease_epoch
     WHERE l.holder_id = p_holder_id AND l.stream IS NOT NULL
       AND CASE WHEN p_to_begin THEN l.expires_at ELSE l.grace_expires_at END > v_now);
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_held_streams(text, text[], bigint[], boolean) FROM PUBLIC;
