-- Make an intent due now that waits for its next call: for a backoff, or because its last call was deferred. In the name of an
-- operator, who has mended the target, say. It spends no attempt and writes no ledger row; it is noted in intent_interventions.
-- Verdicts: due_now; already_due (an executor will take it); scheduled (it was enqueued for a later time and not tried yet);
-- in_flight (somebody is working on it); held, in_doubt or confirming (a call may have had an effect, so neither the quarantine nor the
-- gateway's time is cut short: use resolve_intent); behind_head (of a stream: an earlier intent comes first); paused (its stream
-- is: use resume_stream); already_terminal; not_found.
-- Locks: as lock_for_intervention. Reads the clock after that. Then as advance_streams.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.retry_intent_now(p_intent_id uuid, p_operator text, p_note text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_held record;
  v_row leasehold.outbox_pending;
  v_lease leasehold.leases;
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_intervention(p_intent_id, p_operator, p_note);
  SELECT * INTO v_held FROM leasehold.lock_for_intervention(p_intent_id);
  v_row := v_held.pending;
  v_now := leasehold.announce_change();
  IF v_row.scope = 'stream' THEN
    SELECT * INTO v_lease FROM leasehold.leases l WHERE l.lease_name = v_row.lease_name;
  END IF;
  IF v_row.intent_id IS NULL THEN
    RETURN leasehold.missing_verdict(p_intent_id);
  ELSIF v_held.is_in_flight THEN
    RETURN 'in_flight';
  ELSIF v_row.due_at = 'infinity' THEN
    RETURN 'held';
  ELSIF v_row.last_state IN ('IN_DOUBT', 'SUBMITTED') THEN
    RETURN CASE v_row.last_state WHEN 'IN_DOUBT' THEN 'in_doubt' ELSE 'confirming' END;
  ELSIF v_row.scope = 'stream' AND EXISTS (
    SELECT FROM leasehold.outbox_pending earlier
     WHERE earlier.scope = 'stream' AND earlier.target = v_row.target AND earlier.stream = v_row.stream
       AND earlier.stream_seq < v_row.stream_seq AND NOT earlier.awaits_confirmation) THEN
    RETURN 'behind_head';
  ELSIF v_lease.paused_until > v_now THEN
    RETURN 'paused';
  ELSIF v_row.due_at <= v_now THEN
    RETURN 'already_due';
  ELSIF num_nonnulls(v_row.last_state, v_row.deferred_since) = 0 THEN
    RETURN 'scheduled';
  END IF;
  UPDATE leasehold.outbox_pending p
     SET due_at = v_now, last_modified_at = greatest(v_now, p.last_modified_at + interval '1 microsecond')
   WHERE p.intent_id = p_intent_id;
  -- A holder of the stream looks at it again by itself.
  IF v_lease.expires_at = '-infinity' THEN
    PERFORM leasehold.advance_streams(ARRAY[v_lease.lease_name], '{}', p_free_idle => true, p_begin => false);
  END IF;
  INSERT INTO leasehold.intent_interventions (intervention_id, intent_id, action, operator, note, done_at)
    VALUES (leasehold.new_intent_id(), p_intent_id, 'retry_now', p_operator, p_note, v_now);
  RETURN 'due_now';
END
$$;
REVOKE ALL ON FUNCTION leasehold.retry_intent_now(uuid, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.retry_intent_now(uuid, text, text) TO leasehold_operator;
