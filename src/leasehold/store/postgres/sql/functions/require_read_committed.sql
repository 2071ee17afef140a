-- Refuse to decide about leases in a transaction with an older snapshot than its locks (22023): under
-- REPEATABLE READ it would not see what was committed while it waited. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.require_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'leases are decided in transactions of isolation READ COMMITTED, but this one is %',
      upper(current_setting('transaction_isolation')) USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_read_committed() FROM PUBLIC;
