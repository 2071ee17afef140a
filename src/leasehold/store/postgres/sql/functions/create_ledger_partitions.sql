-- Make the ledger's partitions, a month each, from this month to p_months_ahead months on; returns the
-- names of those it made. Each is filled in as a table of its own and then attached, so that writers of
-- the ledger are not stopped.
-- Locks: an advisory lock against a second maker; the default partition while it attaches. Waits at most
-- two seconds for a lock (55P03): call it again. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.create_ledger_partitions(p_months_ahead integer)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
  v_month timestamptz;
  v_name text;
BEGIN
  PERFORM leasehold.require_between('p_months_ahead', p_months_ahead, 0, 24);
  PERFORM pg_advisory_xact_lock(1818584933);
  FOR v_month IN
    SELECT generate_series(date_trunc('month', clock_timestamp()),
                           date_trunc('month', clock_timestamp()) + make_interval(months => p_months_ahead),
                           interval '1 month')
  LOOP
    v_name := 'outbox_attempts_' || to_char(v_month, 'YYYY_MM');
    CONTINUE WHEN to_regclass('leasehold.' || v_name) IS NOT NULL;
    EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.outbox_attempts INCLUDING ALL)', v_name);
    EXECUTE format('ALTER TABLE leasehold.outbox_attempts ATTACH PARTITION leasehold.%I FOR VALUES FROM (%L) TO (%L)',
                   v_name, leasehold.first_intent_id(v_month),
                   leasehold.first_intent_id(v_month + interval '1 month'));
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON leasehold.%I FOR EACH STATEMENT '
                   'EXECUTE FUNCTION leasehold.refuse_change()', v_name || '_no_truncate', v_name);
    RETURN NEXT v_name;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.create_ledger_partitions(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.create_ledger_partitions(integer) TO leasehold_executor;
