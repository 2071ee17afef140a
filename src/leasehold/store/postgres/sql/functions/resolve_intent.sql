-- Say, in an operator's name, what became of an intent that is in doubt, held or awaiting confirmation:
--   DISPATCHED   it had its effect
--   FAILED       it had none, and shall have none
--   RETRYABLE    it had none, and is to be tried again now
-- Verdicts: resolved; in_flight (someone is asking about it right now); not_in_doubt; already_terminal;
-- not_found.
-- Locks: as lock_for_intervention; then looks at the clock.
-- Raises: P7003 for any other state, P7004 for RETRYABLE when no attempt is left, 22023.
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
    RAISE EXCEPTION '% does not resolve a doubt', coalesce(quote_literal(p_state), 'NULL')
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

  SELECT * INTO v_written FROM leasehold.append_attempts(ARRAY[ROW (
    p_intent_id, p_state, p_operator, 'resolved_by_operator', NULL, NULL, NULL, p_reference, NULL, p_note,
    0, NULL)::leasehold.outcome], v_now, 'none');
  IF v_written.state <> p_state THEN
    RAISE EXCEPTION 'intent % has no attempt left (%)', p_intent_id, v_written.reason
      USING ERRCODE = 'P7004', HINT = 'Resolve it as FAILED and redrive it: that is a new intent.';
  END IF;
  RETURN 'resolved';
END
$$;
REVOKE ALL ON FUNCTION leasehold.resolve_intent(uuid, text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.resolve_intent(uuid, text, text, text, text) TO leasehold_operator;
