-- Take a lease as the session that has the advisory lock: epoch + 1. The function tries to get the lock and never
-- waits for it. The session keeps the lock if it acquired the lease, and releases it otherwise.
-- A free lock proves that the session of the former holder has ended, not that this holder knows it. So a
-- holder elected by lock is replaced before its lease expires, but not before it has begun nothing new for long
-- enough: yield_seconds after its last renewal. A holder elected by row keeps its lease until it expires.
-- Returns one row: whether the lease was acquired, the lease as it is now, and in how many seconds it can be taken
-- (NULL if another session has the lock). Calls that the previous holder had begun are put in doubt. If the
-- database's clock was set back, all times count from now (see repair_lease_times).
-- Locks: the advisory lock, if it is free; the lease row FOR UPDATE, only if it looks free, and then it waits for a
-- fenced write in flight. Reads the clock after that. Then begun rows by id.
-- Raises: P7006; 22023, also outside of READ COMMITTED; the session may then still have the lock.
CREATE OR REPLACE FUNCTION leasehold.acquire_lease_by_lock(
  p_lease_name text, p_holder_id text, p_lock_key bigint, p_lease_seconds double precision,
  p_yield_seconds double precision
) RETURNS TABLE (
  acquired boolean, holder_id text, lease_epoch bigint, acquired_at timestamptz, expires_at timestamptz,
  grace_expires_at timestamptz, free_in_seconds double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_has_lock boolean;
  v_free_at timestamptz;
  v_taken leasehold.leases;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_name('p_lease_name', p_lease_name, 400);
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_between('p_lock_key', p_lock_key, '-infinity', 'infinity');
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 86400);
  PERFORM leasehold.require_between('p_yield_seconds', p_yield_seconds, 1, p_lease_seconds);
  PERFORM leasehold.require_generation();

  v_has_lock := pg_try_advisory_lock(p_lock_key);
  PERFORM leasehold.repair_lease_times(p_lease_name);
  -- least() ignores NULL: without yield_seconds this is the expiry.
  SELECT least(expires_at, renewed_at + make_interval(secs => yield_seconds)) INTO v_free_at
    FROM leasehold.leases WHERE lease_name = p_lease_name;
  IF NOT FOUND THEN
    INSERT INTO leasehold.leases (
      lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at, grace_expires_at)
      VALUES (p_lease_name, p_holder_id, 0, clock_timestamp(), clock_timestamp(), '-infinity', '-infinity')
      ON CONFLICT DO NOTHING;
  END IF;
  IF v_has_lock AND (v_free_at IS NULL OR v_free_at <= clock_timestamp()) THEN
    PERFORM FROM leasehold.leases WHERE lease_name = p_lease_name FOR UPDATE;
    UPDATE leasehold.leases
       SET expires_at = least(expires_at, clock_timestamp()), grace_expires_at = least(expires_at, clock_timestamp())
     WHERE lease_name = p_lease_name
       AND renewed_at + make_interval(secs => yield_seconds) <= clock_timestamp();
    v_taken := leasehold.take_lease(p_lease_name, p_holder_id, p_lease_seconds, 0);
    UPDATE leasehold.leases SET yield_seconds = p_yield_seconds WHERE lease_name = v_taken.lease_name;
  END IF;
  IF v_has_lock AND v_taken.lease_name IS NULL THEN
    PERFORM pg_advisory_unlock(p_lock_key);
  END IF;

  RETURN QUERY
  SELECT v_taken.lease_name IS NOT NULL, l.holder_id, l.lease_epoch, l.acquired_at,
         greatest(l.expires_at, l.acquired_at), greatest(l.grace_expires_at, l.acquired_at),
         CASE WHEN v_has_lock THEN extract(epoch FROM
           least(l.expires_at, l.renewed_at + make_interval(secs => l.yield_seconds)) - clock_timestamp())::float8 END
    FROM leasehold.leases l WHERE l.lease_name = p_lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.acquire_lease_by_lock(text, text, bigint, double precision, double precision)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.acquire_lease_by_lock(text, text, bigint, double precision, double precision)
  TO leasehold_executor;
