-- Record that an instance that only serves the HTTP API is alive, so that its death is seen. p_alive_seconds = 0 says that
-- it stops. It never takes the row of an instance that executes.
-- Locks: the row of the instance.
-- Raises: 22023 for bad arguments, or if the id is that of an instance that executes.
CREATE OR REPLACE FUNCTION leasehold.renew_api_instance(
  p_instance_id text, p_detail jsonb, p_alive_seconds double precision
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  PERFORM leasehold.require_name('p_instance_id', p_instance_id, 128);
  PERFORM leasehold.require_between('p_alive_seconds', p_alive_seconds, 0, 86400);
  IF p_detail IS NULL OR length(p_detail::text) > 16384 THEN
    RAISE EXCEPTION 'p_detail must be JSON of at most 16 KiB' USING ERRCODE = '22023';
  END IF;
  INSERT INTO leasehold.instances AS i (
    instance_id, role, stream_targets, detail, started_at, last_seen_at, alive_until)
    VALUES (p_instance_id, 'api', '{}', p_detail, v_now, v_now, v_now + make_interval(secs => p_alive_seconds))
  ON CONFLICT (instance_id) DO UPDATE
    SET detail = excluded.detail, last_seen_at = excluded.last_seen_at, alive_until = excluded.alive_until
    WHERE i.role = 'api';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the instance % executes intents', p_instance_id USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_api_instance(text, jsonb, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_api_instance(text, jsonb, double precision) TO leasehold_api;
