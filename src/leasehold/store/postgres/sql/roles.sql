-- Create the roles and the schema of Leasehold. Running it again changes nothing; run it in one
-- transaction. Only what is missing needs a privilege: CREATEROLE for a role, CREATE on the database
-- for the schema, ADMIN on leasehold_owner for the membership. A superuser is never needed.
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
        NULL; -- roles belong to the server: a migration of another database made it meanwhile
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'this login may not make the role % (a DBA may: CREATE ROLE % NOLOGIN)', role_name, role_name
          USING ERRCODE = '42501';
      END;
    END IF;
  END LOOP;
END
$roles$;

-- The login that migrates must be able to become the owner. Since PostgreSQL 16 the creator of a
-- role may grant it but is no member that may SET ROLE to it, until it grants that to itself.
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

-- CREATE SCHEMA IF NOT EXISTS would ask for CREATE on the database even when there is nothing to do.
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
