-- Take the lock of lock_call_marks if nobody has it; false if somebody does.
-- Locks: as lock_call_marks, but never waits. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.try_lock_call_marks(p_lease_name text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.pg_try_advisory_xact_lock(1818584933, pg_catalog.hashtext(p_lease_name)) $$;
REVOKE ALL ON FUNCTION leasehold.try_lock_call_marks(text) FROM PUBLIC;
