-- Decide, in the name of an operator, the outcome of an intent that is in doubt, held or awaits confirmation:
--   DISPATCHED   it had its effect
--   FAILED       it had no effect, and must not be tried again
--   RETRYABLE    it had no effect, and is tried again now
-- In scopes stream and cluster its gateway may be asked about it at this moment. That answer is then superseded.
-- Verdicts: resolved; in_flight (an executor is working on it now); not_in_doubt; already_terminal; not_found.
-- Locks: as lock_for_intervention. Reads the clock after that.
-- Raises: P7003 for any other state, P7004 for RETRYABLE if no attempt is left, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.resolve_intent(
  p_intent_id uuid, p_state text, p_operator text, p_note text, p_reference text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_held record;
  v_now timestamptz;
  v_written record;
BEGIN
  PERFORM leasehold.require_intervention(p_intent_id, p_operator, p_note);
  PERFORM leasehold.require_between('the length of p_reference', coalesce(length(p_reference), 0), 0, 255);
  IF p_state IS NULL OR p_state NOT IN ('DISPATCHED', 'FAILED', 'RETRYABLE') THEN
    RAISE EXCEPTION '% is not a state that resolves an intent', coalesce(quote_literal(p_state), 'NULL')
      USING ERRCODE = 'P7003', HINT = 'Allowed: DISPATCHED, FAILED, RETRYABLE.';
  END IF;

  SELECT * INTO v_held FROM leasehold.lock_for_intervention(p_intent_id);
  v_now := leasehold.announce_change();
  IF (v_held.pending).intent_id IS NULL THEN
    RETURN leasehold.missing_verdict(p_intent_id);
  ELSIF v_held.is_in_flight THEN
    RETURN 'in_flight';
  ELSIF (v_held.pending).last_state IS NULL OR (v_held.pending).last_state NOT IN ('IN_DOUBT', 'SUBMITTED') THEN
    RETURN 'not_in_doubt';
  END IF;

  SELECT * INTO v_written FROM leasehold.append_and_continue_streams(ARRAY[leasehold.new_outcome(
    p_intent_id, p_state, p_operator, 'resolved_by_operator', p_note, p_reference => p_reference,
    p_retry_after_seconds => 0)], v_now);
  IF v_written.state <> p_state THEN
    RAISE EXCEPTION 'intent % has no attempt left (%)', p_intent_id, v_written.reason
      USING ERRCODE = 'P7004', HINT = 'Resolve it as FAILED, then redrive it as a new intent.';
  END IF;
  RETURN 'resolved';
END
$$;
REVOKE ALL ON FUNCTION leasehold.resolve_intent(uuid, text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.resolve_intent(uuid, text, text, text, text) TO leasehold_operator;
