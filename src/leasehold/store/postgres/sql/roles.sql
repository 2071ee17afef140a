-- Create the roles and the schema of Leasehold. Run it in one transaction; a second run changes nothing. It
-- needs privileges only for what is missing: CREATEROLE for a role, CREATE on the database for the schema,
-- ADMIN on leasehold_owner for the membership. It never needs a superuser.
DO $roles$
DECLARE
  role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY[
    'leasehold_owner', 'leasehold_ingest', 'leasehold_executor',
    'leasehold_operator', 'leasehold_readonly', 'leasehold_auditor', 'leasehold_api'
  ] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
      BEGIN
        EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role_name);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL; -- roles belong to the server, so the migration of another database may have created it meanwhile
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'this login may not create the role % (have a DBA run: CREATE ROLE % NOLOGIN)',
          role_name, role_name USING ERRCODE = '42501';
      END;
    END IF;
  END LOOP;
END
$roles$;

-- The login that migrates must be able to become the owner. Since PostgreSQL 16 the creator of a role
-- may grant the role, but may SET ROLE to it only after granting it to itself.
DO $membership$
DECLARE
  needed text := CASE
    WHEN pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER'
  END;
BEGIN
  IF NOT pg_catalog.pg_has_role('leasehold_owner', needed) THEN
    GRANT leasehold_owner TO CURRENT_USER;
  END IF;
END
$membership$;

-- CREATE SCHEMA IF NOT EXISTS needs CREATE on the database even if the schema exists.
DO $schema$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'leasehold') THEN
    CREATE SCHEMA leasehold AUTHORIZATION leasehold_owner;
  END IF;
END
$schema$;

SET LOCAL ROLE leasehold_owner;
REVOKE ALL ON SCHEMA leasehold FROM PUBLIC;
GRANT USAGE ON SCHEMA leasehold
  TO leasehold_ingest, leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor,
     leasehold_api;
