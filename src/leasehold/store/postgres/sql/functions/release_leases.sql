-- Release the given leases that this holder still has under the given epoch, so that a successor need not wait for
-- their expiry. One verdict each: released or lease_lost. The rows stay, with their epochs. Whoever takes a lease
-- next puts the calls that are still in flight in doubt.
-- Locks: the lease rows FOR NO KEY UPDATE, by name. Reads the clock after that.
-- Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.release_leases(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[]
) RETURNS TABLE (lease_name text, verdict text)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_leases(p_holder_id, p_lease_names, p_lease_epochs);
  PERFORM FROM leasehold.leases l WHERE l.lease_name = ANY (p_lease_names)
    ORDER BY l.lease_name FOR NO KEY UPDATE;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH released AS (
    UPDATE leasehold.leases l
       SET expires_at = least(l.expires_at, v_now), grace_expires_at = v_now, lease_seconds = 0, grace_seconds = 0
      FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
     WHERE l.lease_name = asked.lease_name AND l.lease_epoch = asked.lease_epoch AND l.holder_id = p_holder_id
       AND l.grace_expires_at > v_now
    RETURNING l.lease_name
  )
  SELECT asked.lease_name, CASE WHEN r.lease_name IS NULL THEN 'lease_lost' ELSE 'released' END
    FROM unnest(p_lease_names) AS asked (lease_name)
    LEFT JOIN released r ON r.lease_name = asked.lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_leases(text, text[], bigint[]) FROM PUBLIC;
