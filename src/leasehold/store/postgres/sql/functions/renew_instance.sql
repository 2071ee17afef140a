-- Record that an instance is alive, with its role and the targets whose streams it serves. For each of these targets,
-- p_streams_held says how many streams it holds, and p_streams_wanted for how many more it has free slots and found none
-- (NULL: none). Only the shares of streams are decided by it (surplus_streams); the rest is for people and monitoring.
-- Locks: the row of the instance.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.renew_instance(
  p_instance_id text, p_role text, p_stream_targets text[], p_detail jsonb, p_alive_seconds double precision,
  p_streams_held integer[] DEFAULT NULL, p_streams_wanted integer[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  PERFORM leasehold.require_name('p_instance_id', p_instance_id, 128);
  PERFORM leasehold.require_list('p_stream_targets', p_stream_targets, 1000);
  PERFORM leasehold.require_between('p_alive_seconds', p_alive_seconds, 1, 86400);
  IF p_role IS NULL OR p_role NOT IN ('leader', 'follower', 'standalone', 'worker') THEN
    RAISE EXCEPTION 'p_role is %, but must be leader, follower, standalone or worker',
      coalesce(quote_literal(p_role), 'NULL') USING ERRCODE = '22023';
  ELSIF p_detail IS NULL OR length(p_detail::text) > 16384 THEN
    RAISE EXCEPTION 'p_detail must be JSON of at most 16 KiB' USING ERRCODE = '22023';
  ELSIF cardinality(p_streams_held) <> cardinality(p_stream_targets)
     OR cardinality(p_streams_wanted) <> cardinality(p_stream_targets)
     OR array_position(p_streams_held || p_streams_wanted, NULL) IS NOT NULL OR 0 > ANY (p_streams_held || p_streams_wanted) THEN
    RAISE EXCEPTION 'p_streams_held and p_streams_wanted must have one number, not negative, for each of the % targets',
      cardinality(p_stream_targets) USING ERRCODE = '22023';
  END IF;
  INSERT INTO leasehold.instances AS i (
    instance_id, role, stream_targets, detail, started_at, last_seen_at, alive_until, streams_held, streams_wanted)
    VALUES (p_instance_id, p_role, p_stream_targets, p_detail, v_now, v_now,
            v_now + make_interval(secs => p_alive_seconds),
            coalesce(p_streams_held, array_fill(0, ARRAY[cardinality(p_stream_targets)])),
            coalesce(p_streams_wanted, array_fill(0, ARRAY[cardinality(p_stream_targets)])))
  ON CONFLICT (instance_id) DO UPDATE
    SET role = excluded.role, stream_targets = excluded.stream_targets, detail = excluded.detail,
        streams_held = excluded.streams_held, streams_wanted = excluded.streams_wanted,
        last_seen_at = clock_timestamp(),
        alive_until = clock_timestamp() + make_interval(secs => p_alive_seconds);
END
$$;
REVOKE ALL ON FUNCTION leasehold.renew_instance(
  text, text, text[], jsonb, double precision, integer[], integer[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.renew_instance(
  text, text, text[], jsonb, double precision, integer[], integer[]) TO leasehold_executor;
