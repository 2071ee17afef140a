-- Store the report of a leader for monitoring. Nothing is decided by it.
-- Locks: the lease row FOR KEY SHARE, then the row in leader_heartbeat.
-- Raises: P7002 if the lease is lost, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.record_leader_heartbeat(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_detail jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF p_detail IS NULL OR length(p_detail::text) > 16384 THEN
    RAISE EXCEPTION 'p_detail must be JSON of at most 16 KiB' USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  INSERT INTO leasehold.leader_heartbeat AS h (lease_name, instance_id, lease_epoch, last_seen_at, detail)
  VALUES (p_lease_name, p_holder_id, p_lease_epoch, clock_timestamp(), p_detail)
  ON CONFLICT (lease_name) DO UPDATE
    SET instance_id = excluded.instance_id, lease_epoch = excluded.lease_epoch,
        last_seen_at = clock_timestamp(), detail = excluded.detail;
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_leader_heartbeat(text, text, bigint, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_leader_heartbeat(text, text, bigint, jsonb) TO leasehold_executor;
