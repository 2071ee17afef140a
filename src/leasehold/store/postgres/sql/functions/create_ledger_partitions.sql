-- Create the monthly partitions of the ledger, from this month to p_months_ahead months ahead. Returns the
-- names of the partitions that it created.
-- Each partition is created as a separate table and then attached, so writers of the ledger do not wait. If the
-- default partition already has rows of a month, the function creates that partition too and moves the rows.
-- Only then does it stop the writers of the ledger for a moment.
-- Locks: an advisory lock, so that only one session creates partitions; the default partition while it
-- attaches; the ledger itself, exclusively, if it moves rows.
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
  v_attach text;
BEGIN
  PERFORM leasehold.require_between('p_months_ahead', p_months_ahead, 0, 24);
  PERFORM pg_advisory_xact_lock(1818584933);
  FOREACH v_month IN ARRAY ARRAY(
    SELECT generate_series(date_trunc('month', clock_timestamp()),
                           date_trunc('month', clock_timestamp()) + make_interval(months => p_months_ahead),
                           interval '1 month')
    UNION
    SELECT date_trunc('month', leasehold.intent_accepted_at(intent_id)) FROM leasehold.outbox_attempts_default
    ORDER BY 1)
  LOOP
    v_name := 'outbox_attempts_' || to_char(v_month, 'YYYY_MM');
    CONTINUE WHEN to_regclass('leasehold.' || v_name) IS NOT NULL;
    v_first := leasehold.lowest_intent_id(v_month);
    v_end := leasehold.lowest_intent_id(v_month + interval '1 month');
    v_attach := format('ALTER TABLE leasehold.outbox_attempts ATTACH PARTITION leasehold.%I '
                       'FOR VALUES FROM (%L) TO (%L)', v_name, v_first, v_end);
    EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.outbox_attempts INCLUDING ALL)', v_name);
    BEGIN
      EXECUTE v_attach;
    EXCEPTION WHEN check_violation THEN
      -- The default partition has rows of this month. While it is detached, no trigger refuses the DELETE.
      ALTER TABLE leasehold.outbox_attempts DETACH PARTITION leasehold.outbox_attempts_default;
      EXECUTE format('WITH moved AS (DELETE FROM leasehold.outbox_attempts_default '
                     'WHERE intent_id >= %L AND intent_id < %L RETURNING *) '
                     'INSERT INTO leasehold.%I SELECT * FROM moved', v_first, v_end, v_name);
      EXECUTE v_attach;
      ALTER TABLE leasehold.outbox_attempts ATTACH PARTITION leasehold.outbox_attempts_default DEFAULT;
    END;
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON leasehold.%I FOR EACH STATEMENT '
                   'EXECUTE FUNCTION leasehold.refuse_change()', v_name || '_no_truncate', v_name);
    RETURN NEXT v_name;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.create_ledger_partitions(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.create_ledger_partitions(integer) TO leasehold_executor;
