-- Extend the stream leases of a holder. One verdict each: renewed, lease_lost, or locked (another transaction has the lease
-- row: the lease lasts as long as before; ask again).
-- Locks: the lease rows FOR NO KEY UPDATE, by name, SKIP LOCKED, so it never waits. Reads the clock after that.
-- Raises: P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.renew_streams(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_lease_seconds double precision,
  p_grace_seconds double precision
) RETURNS TABLE (lease_name text, verdict text, expires_at timestamptz, grace_expires_at timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT * FROM leasehold.renew_leases(
    p_holder_id, p_lease_names, p_lease_epochs, p_lease_seconds, p_grace_seconds)
$$;
REVOKE ALL ON FUNCTION leasehold.renew_streams(text, text[], bigint[], double precision, double precision)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_streams(text, text[], bigint[], double precision, double precision)
  TO leasehold_executor;
