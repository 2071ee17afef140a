-- Take a lease that nobody holds or that has expired: epoch + 1, also for the same holder. Returns one row: whether
-- it was acquired, and the lease as it is now, whoever holds it. Calls that the previous holder had begun are put in
-- doubt before the new holder can act. If the database's clock was set back, the lease of a dead holder can be taken
-- after one more lease (see repair_lease_times).
-- Locks: the lease row FOR UPDATE, only if it looks expired, so that an idle follower locks nothing; it waits for a
-- fenced write in flight. Reads the clock after that. Then begun rows by id.
-- Raises: P7006; 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.acquire_lease(
  p_lease_name text, p_holder_id text, p_lease_seconds double precision,
  p_grace_seconds double precision DEFAULT 0
) RETURNS TABLE (
  acquired boolean, holder_id text, lease_epoch bigint, acquired_at timestamptz, expires_at timestamptz,
  grace_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_lease leasehold.leases;
  v_taken leasehold.leases;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_name('p_lease_name', p_lease_name, 400);
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 86400);
  PERFORM leasehold.require_between('p_grace_seconds', p_grace_seconds, 0, 86400);
  IF p_lease_name LIKE 'stream/%' THEN
    RAISE EXCEPTION 'lease % covers a stream; claim_streams grants it', p_lease_name USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_generation();

  PERFORM leasehold.repair_lease_times(p_lease_name);
  SELECT * INTO v_lease FROM leasehold.leases WHERE lease_name = p_lease_name;
  IF v_lease.lease_name IS NULL THEN
    INSERT INTO leasehold.leases (
      lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at, grace_expires_at)
      VALUES (p_lease_name, p_holder_id, 0, clock_timestamp(), clock_timestamp(), '-infinity', '-infinity')
      ON CONFLICT DO NOTHING;
  END IF;
  IF v_lease.lease_name IS NULL OR v_lease.expires_at <= clock_timestamp() THEN
    PERFORM FROM leasehold.leases WHERE lease_name = p_lease_name FOR UPDATE;
    v_taken := leasehold.take_lease(p_lease_name, p_holder_id, p_lease_seconds, p_grace_seconds);
  END IF;

  RETURN QUERY
  SELECT v_taken.lease_name IS NOT NULL, l.holder_id, l.lease_epoch, l.acquired_at, l.expires_at, l.grace_expires_at
    FROM leasehold.leases l WHERE l.lease_name = p_lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.acquire_lease(text, text, double precision, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.acquire_lease(text, text, double precision, double precision)
  TO leasehold_executor;
