-- Extend the given leases that this holder still has under the given epoch. One verdict each: renewed, lease_lost, or locked
-- (another transaction has the lease row: the lease lasts as long as before; ask again).
-- A lease in its second phase still belongs to its holder if nobody has taken it.
-- Locks: the lease rows FOR NO KEY UPDATE, by name, SKIP LOCKED, so that one row that is locked for long costs no other
-- lease. Reads the clock after that.
-- Raises: P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_leases(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_lease_seconds double precision,
  p_grace_seconds double precision
) RETURNS TABLE (lease_name text, verdict text, expires_at timestamptz, grace_expires_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_names text[];
  v_epochs bigint[];
BEGIN
  PERFORM leasehold.require_leases(p_holder_id, p_lease_names, p_lease_epochs);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 86400);
  PERFORM leasehold.require_between('p_grace_seconds', p_grace_seconds, 0, 86400);
  PERFORM leasehold.require_generation();

  SELECT array_agg(locked.lease_name), array_agg(locked.lease_epoch) INTO v_names, v_epochs
    FROM (SELECT l.lease_name, asked.lease_epoch
            FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
            JOIN leasehold.leases l ON l.lease_name = asked.lease_name
           ORDER BY l.lease_name
             FOR NO KEY UPDATE OF l SKIP LOCKED) AS locked;
  v_now := clock_timestamp();

  RETURN QUERY
  WITH renewed AS (
    UPDATE leasehold.leases l
       SET renewed_at = v_now, expires_at = v_now + make_interval(secs => p_lease_seconds),
           grace_expires_at = v_now + make_interval(secs => p_lease_seconds + p_grace_seconds),
           lease_seconds = p_lease_seconds, grace_seconds = p_grace_seconds
      FROM unnest(v_names, v_epochs) AS asked (lease_name, lease_epoch)
     WHERE l.lease_name = asked.lease_name AND l.lease_epoch = asked.lease_epoch AND l.holder_id = p_holder_id
       AND l.grace_expires_at > v_now
    RETURNING l.lease_name, l.expires_at, l.grace_expires_at
  )
  SELECT asked.lease_name,
         CASE WHEN r.lease_name IS NOT NULL THEN 'renewed'
              WHEN EXISTS (SELECT FROM leasehold.leases l
                            WHERE l.lease_name = asked.lease_name AND l.lease_epoch = asked.lease_epoch
                              AND l.holder_id = p_holder_id AND l.grace_expires_at > v_now) THEN 'locked'
              ELSE 'lease_lost' END,
         r.expires_at, r.grace_expires_at
    FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
    LEFT JOIN renewed r ON r.lease_name = asked.lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_leases(text, text[], bigint[], double precision, double precision) FROM PUBLIC;
