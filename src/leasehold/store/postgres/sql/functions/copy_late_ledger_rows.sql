-- Copy up to p_rows_max rows of the ledger's default partition that have no copy yet, and return how many; a helper of
-- move_ledger_rows. While the numbers of rows are equal, nothing is missing, and no row is compared.
-- Locks nothing that its caller does not lock. Raises: nothing of its own.
CREATE OR REPLACE FUNCTION leasehold.copy_late_ledger_rows(p_rows_max integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_copied integer;
BEGIN
  IF (SELECT count(*) FROM leasehold.outbox_attempts_default) = (SELECT count(*) FROM leasehold.outbox_attempts_moving) THEN
    RETURN 0;
  END IF;
  INSERT INTO leasehold.outbox_attempts_moving (
    intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at, finished_at, reference, code,
    detail, transaction_id)
  SELECT d.intent_id, d.attempt_no, d.state, d.reason, d.holder, d.lease_token, d.lease_name, d.lease_epoch, d.started_at,
         d.finished_at, d.reference, d.code, d.detail, d.transaction_id
    FROM leasehold.outbox_attempts_default d
   WHERE NOT EXISTS (SELECT FROM leasehold.outbox_attempts_moving m
                      WHERE m.intent_id = d.intent_id AND m.attempt_no = d.attempt_no)
   LIMIT p_rows_max;
  GET DIAGNOSTICS v_copied = ROW_COUNT;
  RETURN v_copied;
END
$$;
REVOKE ALL ON FUNCTION leasehold.copy_late_ledger_rows(integer) FROM PUBLIC;
