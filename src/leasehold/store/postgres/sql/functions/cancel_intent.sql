-- Cancel an intent in the name of an operator, if no call was made for it. Writes a CANCELLED row to the
-- ledger.
-- Verdicts: cancelled; in_flight (someone has claimed it or has begun a call: try again later); in_doubt or
-- confirming (a call may have had an effect: use resolve_intent); already_terminal; not_found.
-- Locks: as lock_for_intervention. Reads the clock after that.
-- Raises: P7006 while a restore is being repaired, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.cancel_intent(p_intent_id uuid, p_operator text, p_note text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_held record;
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_intervention(p_intent_id, p_operator, p_note);
  PERFORM leasehold.require_restored();
  SELECT * INTO v_held FROM leasehold.lock_for_intervention(p_intent_id);
  v_now := leasehold.announce_change();
  IF (v_held.pending).intent_id IS NULL THEN
    RETURN leasehold.missing_verdict(p_intent_id);
  ELSIF v_held.is_in_flight THEN
    RETURN 'in_flight';
  ELSIF (v_held.pending).last_state IN ('IN_DOUBT', 'SUBMITTED') THEN
    RETURN CASE (v_held.pending).last_state WHEN 'IN_DOUBT' THEN 'in_doubt' ELSE 'confirming' END;
  END IF;
  PERFORM leasehold.append_and_continue_streams(ARRAY[leasehold.new_outcome(
    p_intent_id, 'CANCELLED', p_operator, 'cancelled_by_operator', p_note)], v_now);
  RETURN 'cancelled';
END
$$;
REVOKE ALL ON FUNCTION leasehold.cancel_intent(uuid, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.cancel_intent(uuid, text, text) TO leasehold_operator;
