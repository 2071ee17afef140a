-- Make the ledger's partitions, a month each, from this month to p_months_ahead months on; returns the
-- names of those it made. Each is filled in as a table of its own and then attached, so that writers of
-- the ledger are not stopped. A month that has rows in the default partition, because they came before
-- its partition, gets one too, and the rows are moved; only then the ledger stands still for a moment.
-- Locks: an advisory lock against a second maker; the default partition while it attaches; to move rows,
-- the ledger itself, exclusively. Waits at most two seconds for a lock (55P03): call it again.
-- Raises: 22023.
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
      -- The default partition has rows of this month. Detached, it lacks the trigger that refuses DELETE.
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
