-- Say that an instance is going, so that its share of the streams is free at once; false when it was not
-- known. The row stays for people to see until retention. Locks: the instance's row. Raises: 22023.
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
