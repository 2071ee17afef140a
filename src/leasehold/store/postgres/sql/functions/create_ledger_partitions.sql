-- Create the monthly partitions of the ledger, from this month to p_months_ahead months ahead. Returns the
-- names of the partitions that it created.
-- Each partition is created as a separate table and then attached, so writers of the ledger do not wait. If the
-- default partition has rows, the function also does one step of move_ledger_rows, which is the whole move if they are few,
-- and returns the partitions that it made of them.
-- Locks: an advisory lock, so that only one session creates partitions; the default partition while it
-- attaches; then as move_ledger_rows.
-- Raises: 55P03 if a lock is not free within two seconds (call it again), 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.create_ledger_partitions(p_months_ahead integer)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
  v_month timestamptz;
  v_name text;
  v_first uuid;
  v_end uuid;
BEGIN
  PERFORM leasehold.require_between('p_months_ahead', p_months_ahead, 0, 24);
  PERFORM pg_advisory_xact_lock(1818584933);
  RETURN QUERY SELECT unnest(moved.partitions) FROM leasehold.move_ledger_rows(5000) AS moved;
  FOR v_month IN
    SELECT generate_series(date_trunc('month', clock_timestamp()),
                           date_trunc('month', clock_timestamp()) + make_interval(months => p_months_ahead),
                           interval '1 month')
  LOOP
    v_name := 'outbox_attempts_' || to_char(v_month, 'YYYY_MM');
    CONTINUE WHEN to_regclass('leasehold.' || v_name) IS NOT NULL;
    v_first := leasehold.lowest_intent_id(v_month);
    v_end := leasehold.lowest_intent_id(v_month + interval '1 month');
    BEGIN
      EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.outbox_attempts INCLUDING ALL)', v_name);
      EXECUTE format('ALTER TABLE leasehold.outbox_attempts ATTACH PARTITION leasehold.%I '
                     'FOR VALUES FROM (%L) TO (%L)', v_name, v_first, v_end);
    EXCEPTION WHEN check_violation THEN
      CONTINUE;  -- the default partition has just got a row of this month: the next call moves it
    END;
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON leasehold.%I FOR EACH STATEMENT '
                   'EXECUTE FUNCTION leasehold.refuse_change()', v_name || '_no_truncate', v_name);
    RETURN NEXT v_name;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.create_ledger_partitions(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.create_ledger_partitions(integer) TO leasehold_executor;
