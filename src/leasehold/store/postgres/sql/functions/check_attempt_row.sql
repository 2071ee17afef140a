-- Check a row of the ledger: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK; see check_intent_row. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.check_attempt_row(
  p_attempt_no integer, p_state text, p_reason text, p_lease_token uuid, p_lease_epoch bigint,
  p_started_at timestamptz, p_finished_at timestamptz, p_reference text, p_code text, p_detail text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN p_attempt_no < 1 THEN 'outbox_attempts_number_positive'
    WHEN p_state NOT IN ('DISPATCHED', 'FAILED', 'CANCELLED', 'RETRYABLE', 'ZOMBIE_REQUEUE', 'IN_DOUBT', 'SUBMITTED')
      THEN 'outbox_attempts_state_known'
    WHEN p_attempt_no > 20 AND p_state IN ('RETRYABLE', 'ZOMBIE_REQUEUE') THEN 'outbox_attempts_retry_ceiling'
    WHEN p_lease_token IS NOT NULL AND p_lease_epoch IS NOT NULL THEN 'outbox_attempts_token_or_epoch'
    WHEN p_finished_at < p_started_at THEN 'outbox_attempts_time_runs_forward'
    WHEN length(p_reason) > 64 THEN 'outbox_attempts_reason_bounded'
    WHEN length(p_code) > 64 THEN 'outbox_attempts_code_bounded'
    WHEN length(p_reference) > 255 THEN 'outbox_attempts_reference_bounded'
    WHEN length(p_detail) > 2000 THEN 'outbox_attempts_detail_bounded'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('outbox_attempts', v_broken);
  END IF;
  RETURN true;
END
$$;
REVOKE ALL ON FUNCTION leasehold.check_attempt_row(
  integer, text, text, uuid, bigint, timestamptz, timestamptz, text, text, text) FROM PUBLIC;
