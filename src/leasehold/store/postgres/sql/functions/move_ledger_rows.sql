-- Move the rows of the ledger's default partition to partitions of their months, one step per call: copy up to p_rows_max
-- rows. Call it again until is_complete is true. Each step is as short as the first, however many rows there are.
-- The copies are in tables that are not part of the ledger yet, under outbox_attempts_moving, so readers see each row once, in
-- the default partition. When nothing is left to copy, the last step stops writers and readers for a moment, copies what came
-- meanwhile, compares the numbers of rows, attaches the months (their names are returned), and drops the default
-- partition for an empty one. A step that is killed leaves nothing; the next one goes on where the last one ended.
-- Writers go on: rows of the ledger are only added, so a copy stays right. A transaction of another isolation level than READ
-- COMMITTED that began before the last step does not see the rows that were moved since.
-- Locks: an advisory lock, so that one session moves rows or creates partitions; in the last step the ledger, exclusively.
-- Raises: 55P03 if a lock is not free within two seconds (call it again), 22023 for bad arguments and outside of READ
-- COMMITTED, XX001 if a copy is not complete, which is a defect: nothing is dropped then.
CREATE OR REPLACE FUNCTION leasehold.move_ledger_rows(
  p_rows_max integer, OUT partitions text[], OUT is_complete boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
#variable_conflict use_column
DECLARE
  v_id uuid;
  v_last_id uuid;
  v_last_no integer;
  v_month timestamptz;
  v_name text;
  v_first uuid;
  v_end uuid;
  v_copied integer;
  v_part record;
BEGIN
  PERFORM leasehold.require_between('p_rows_max', p_rows_max, 1, 100000);
  PERFORM leasehold.require_read_committed();
  PERFORM pg_advisory_xact_lock(1818584933);
  partitions := '{}';
  is_complete := false;
  SELECT d.intent_id INTO v_id FROM leasehold.outbox_attempts_default d ORDER BY d.intent_id LIMIT 1;
  IF v_id IS NULL THEN
    is_complete := true;
    RETURN;
  END IF;

  IF to_regclass('leasehold.outbox_attempts_moving') IS NULL THEN
    CREATE TABLE leasehold.outbox_attempts_moving (LIKE leasehold.outbox_attempts INCLUDING ALL)
      PARTITION BY RANGE (intent_id);
  END IF;
  WHILE v_id IS NOT NULL LOOP
    v_month := date_trunc('month', leasehold.intent_accepted_at(v_id));
    v_name := 'outbox_attempts_' || to_char(v_month, 'YYYY_MM');
    v_first := leasehold.lowest_intent_id(v_month);
    v_end := leasehold.lowest_intent_id(v_month + interval '1 month');
    IF to_regclass('leasehold.' || v_name) IS NULL THEN
      -- With the constraint, no row is read again when the table is attached to the ledger.
      EXECUTE format('CREATE TABLE leasehold.%I (LIKE leasehold.outbox_attempts INCLUDING ALL, '
                     'CONSTRAINT of_this_month CHECK (intent_id >= %L AND intent_id < %L))', v_name, v_first, v_end);
      EXECUTE format('ALTER TABLE leasehold.outbox_attempts_moving ATTACH PARTITION leasehold.%I '
                     'FOR VALUES FROM (%L) TO (%L)', v_name, v_first, v_end);
    END IF;
    SELECT d.intent_id INTO v_id FROM leasehold.outbox_attempts_default d
     WHERE d.intent_id >= v_end ORDER BY d.intent_id LIMIT 1;
  END LOOP;

  SELECT m.intent_id, m.attempt_no INTO v_last_id, v_last_no FROM leasehold.outbox_attempts_moving m
   ORDER BY m.intent_id DESC, m.attempt_no DESC LIMIT 1;
  INSERT INTO leasehold.outbox_attempts_moving (
    intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at, finished_at, reference, code,
    detail, transaction_id)
  SELECT d.intent_id, d.attempt_no, d.state, d.reason, d.holder, d.lease_token, d.lease_name, d.lease_epoch, d.started_at,
         d.finished_at, d.reference, d.code, d.detail, d.transaction_id
    FROM leasehold.outbox_attempts_default d
   WHERE v_last_id IS NULL OR (d.intent_id, d.attempt_no) > (v_last_id, v_last_no)
   ORDER BY d.intent_id, d.attempt_no LIMIT p_rows_max;
  GET DIAGNOSTICS v_copied = ROW_COUNT;
  IF v_copied = p_rows_max THEN
    RETURN;
  END IF;
  -- Rows of earlier intents that were written after their neighbours had been copied.
  v_copied := leasehold.copy_late_ledger_rows(p_rows_max);
  IF v_copied = p_rows_max THEN
    RETURN;
  END IF;

  LOCK TABLE leasehold.outbox_attempts IN ACCESS EXCLUSIVE MODE;
  v_copied := leasehold.copy_late_ledger_rows(p_rows_max);
  IF v_copied = p_rows_max THEN
    RETURN;
  ELSIF (SELECT count(*) FROM leasehold.outbox_attempts_default) <> (SELECT count(*) FROM leasehold.outbox_attempts_moving) THEN
    RAISE EXCEPTION 'the copies of the ledger''s default partition are not complete' USING ERRCODE = 'XX001';
  END IF;
  ALTER TABLE leasehold.outbox_attempts DETACH PARTITION leasehold.outbox_attempts_default;
  FOR v_part IN
    SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'leasehold.outbox_attempts_moving'::regclass ORDER BY c.relname
  LOOP
    EXECUTE format('ALTER TABLE leasehold.outbox_attempts_moving DETACH PARTITION leasehold.%I', v_part.name);
    EXECUTE format('ALTER TABLE leasehold.outbox_attempts ATTACH PARTITION leasehold.%I %s', v_part.name, v_part.bounds);
    EXECUTE format('ALTER TABLE leasehold.%I DROP CONSTRAINT of_this_month', v_part.name);
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON leasehold.%I FOR EACH STATEMENT '
                   'EXECUTE FUNCTION leasehold.refuse_change()', v_part.name || '_no_truncate', v_part.name);
    partitions := partitions || v_part.name::text;
  END LOOP;
  DROP TABLE leasehold.outbox_attempts_moving, leasehold.outbox_attempts_default;
  CREATE TABLE leasehold.outbox_attempts_default PARTITION OF leasehold.outbox_attempts DEFAULT;
  CREATE TRIGGER outbox_attempts_default_no_truncate BEFORE TRUNCATE ON leasehold.outbox_attempts_default
    FOR EACH STATEMENT EXECUTE FUNCTION leasehold.refuse_change();
  is_complete := true;
END
$$;
REVOKE ALL ON FUNCTION leasehold.move_ledger_rows(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.move_ledger_rows(integer) TO leasehold_executor;
