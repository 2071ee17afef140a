-- Refuse to decide about leases, or to count, above the isolation level READ COMMITTED. The snapshot of such a
-- transaction is older than its locks, so it does not see what others committed while it waited. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'this function needs the isolation level READ COMMITTED, but this transaction is %',
      upper(current_setting('transaction_isolation')) USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_read_committed() FROM PUBLIC;
