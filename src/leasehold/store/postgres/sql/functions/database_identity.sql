-- Say which database this is, so that a copy or a successor of it says something else: the system identifier of the cluster
-- (another one after a dump and restore), its timeline (another one after a promotion or a recovery to a point in time), and
-- the oids of the database and of the table leases (others after CREATE DATABASE ... TEMPLATE or a restored dump).
-- A copy of the data folder that is started as it was says the same.
-- The timeline is that of the current position; pg_control_checkpoint lags behind a promotion. pg_walfile_name is declared
-- immutable: a position that is no constant keeps it from being computed once.
-- The path of a table is .../<oid of the database>/<file>. A look into pg_database takes twenty times as long.
-- It has no SET search_path, so that it is inlined; its callers have set it. Locks nothing. Raises: 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.database_identity(p_system_identifier text) RETURNS text
LANGUAGE sql VOLATILE AS $$
  SELECT 'system ' || p_system_identifier || ', timeline '
    || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) || ', database '
    || pg_catalog.split_part(pg_catalog.pg_relation_filepath('pg_catalog.pg_class'), '/', -2) || ', table leases '
    || ('leasehold.leases'::regclass::oid)::text
$$;
REVOKE ALL ON FUNCTION leasehold.database_identity(text) FROM PUBLIC;
