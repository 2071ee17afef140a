-- Read which database this is; see database_identity. Locks nothing. Raises: 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.read_database_identity() RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT leasehold.database_identity(system_identifier::text) FROM pg_control_system()
$$;
REVOKE ALL ON FUNCTION leasehold.read_database_identity() FROM PUBLIC;
