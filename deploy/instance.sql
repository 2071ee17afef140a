-- The login of instances that serve the HTTP API and execute: a member of the roles that an instance
-- uses, one at a time, and of no other. Run it after `leasehold migrate`, as the same user; it can be
-- repeated. Then allow it to log in: ALTER ROLE leasehold_instance PASSWORD '...'.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'leasehold_instance') THEN
    CREATE ROLE leasehold_instance LOGIN NOINHERIT CONNECTION LIMIT 200;
  END IF;
END
$$;

GRANT leasehold_ingest, leasehold_readonly, leasehold_operator, leasehold_auditor, leasehold_api,
      leasehold_executor TO leasehold_instance;
