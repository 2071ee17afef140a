-- Record that an instance has stopped, so that other instances can take its share of the streams at once.
-- Returns false if the instance is unknown. The row remains visible until retention deletes it.
-- Locks: the row of the instance.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.release_instance(p_instance_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  PERFORM leasehold.require_name('p_instance_id', p_instance_id, 128);
  UPDATE leasehold.instances SET last_seen_at = clock_timestamp(), alive_until = clock_timestamp()
   WHERE instance_id = p_instance_id;
  RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_instance(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_instance(text) TO leasehold_executor;
