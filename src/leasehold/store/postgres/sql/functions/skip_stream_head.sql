-- Skip the head of a stream in the name of an operator: it ends as CANCELLED on the ledger (skipped_by_operator), and the
-- stream goes on with the next item. p_intent_id says which intent the operator saw at the head. A pause of the stream
-- stays. It is noted in stream_interventions too.
-- Verdicts: skipped; skipped_paused (skipped, but nothing of the stream is begun while a reason for its pause stands); not_head
-- (another intent is at the head now); in_flight (a call is being made, or another transaction has locked the row: try again
-- later); in_doubt or confirming (a call may have had an effect: use resolve_intent); already_terminal; not_found (also if the
-- intent is not of this stream).
-- Locks: as lock_stream_for_intervention; then the pending row, SKIP LOCKED, because the stream's holder needs the lease row.
-- Reads the clock after that. Then as advance_streams.
-- Raises: P7006 while a restore is being repaired, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.skip_stream_head(
  p_target text, p_stream text, p_intent_id uuid, p_operator text, p_note text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
  v_head leasehold.outbox_pending;
BEGIN
  PERFORM leasehold.require_intervention(p_intent_id, p_operator, p_note);
  PERFORM leasehold.require_restored();
  v_lease := leasehold.lock_stream_for_intervention(p_target, p_stream, p_operator, p_note);
  -- The lock of the lease keeps the head what it is.
  SELECT * INTO v_head FROM leasehold.outbox_pending p
   WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream
     AND NOT p.awaits_confirmation
   ORDER BY p.stream_seq LIMIT 1;
  IF v_lease.lease_name IS NULL THEN
    RETURN 'not_found';
  ELSIF v_head.intent_id IS DISTINCT FROM p_intent_id THEN
    RETURN CASE WHEN NOT EXISTS (SELECT FROM leasehold.intents
                                  WHERE intent_id = p_intent_id AND target = p_target AND stream = p_stream) THEN 'not_found'
                WHEN EXISTS (SELECT FROM leasehold.outbox_pending WHERE intent_id = p_intent_id) THEN 'not_head'
                ELSE leasehold.missing_verdict(p_intent_id) END;
  END IF;
  SELECT * INTO v_head FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR v_head.begun_at IS NOT NULL THEN
    RETURN 'in_flight';
  ELSIF v_head.last_state IN ('IN_DOUBT', 'SUBMITTED') THEN
    RETURN CASE v_head.last_state WHEN 'IN_DOUBT' THEN 'in_doubt' ELSE 'confirming' END;
  END IF;
  PERFORM leasehold.append_and_continue_streams(ARRAY[leasehold.new_outcome(
    p_intent_id, 'CANCELLED', p_operator, 'skipped_by_operator', p_note)], clock_timestamp());
  PERFORM leasehold.record_intervention(p_target, p_stream, 'skip', p_operator, p_note, p_intent_id, NULL);
  RETURN CASE WHEN v_lease.paused_until > clock_timestamp() THEN 'skipped_paused' ELSE 'skipped' END;
END
$$;
REVOKE ALL ON FUNCTION leasehold.skip_stream_head(text, text, uuid, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.skip_stream_head(text, text, uuid, text, text) TO leasehold_operator;
