-- Try finished intents anew, in an operator's name. A terminal outcome stands for ever, so each becomes a
-- new intent under the target's current contract and with its priority; the first ledger row says whom it redrives.
-- The gateway sees the same submission key again, unless the old intent was rejected: a rejection is
-- known to have had no effect, and a keyed gateway would only repeat it.
-- Verdicts: redriven (with the new id), already_redriven (with that id), already_accepted, not_terminal,
-- unknown_target, not_found.
-- Locks: streams that it writes to, sorted; keys of new intents. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.redrive_intents(p_intent_ids uuid[], p_operator text, p_note text)
RETURNS TABLE (intent_id uuid, verdict text, new_intent_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_transaction_id xid8 := pg_current_xact_id();  -- before the clock is read, as in enqueue_one
  v_old record;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 1000);
  PERFORM leasehold.require_intervention('00000000-0000-0000-0000-000000000000', p_operator, p_note);

  PERFORM leasehold.lock_streams(array_agg(i.target), array_agg(i.stream))
     FROM leasehold.intents i
    WHERE i.intent_id = ANY (p_intent_ids) AND i.stream IS NOT NULL
      AND (SELECT scope FROM leasehold.contracts c
            WHERE c.target = i.target ORDER BY c.version DESC LIMIT 1) = 'stream';
  FOR v_old IN
    SELECT asked.intent_id, i.intent_id IS NOT NULL AS is_known, final.state, final.reason
      FROM unnest(p_intent_ids) AS asked (intent_id)
      LEFT JOIN leasehold.intents i ON i.intent_id = asked.intent_id
      LEFT JOIN LATERAL (
        SELECT a.state, a.reason FROM leasehold.outbox_attempts a
         WHERE a.intent_id = asked.intent_id AND a.state IN ('DISPATCHED', 'FAILED', 'CANCELLED')) AS final ON true
     ORDER BY asked.intent_id
  LOOP
    intent_id := v_old.intent_id;
    new_intent_id := NULL;
    verdict := CASE WHEN NOT v_old.is_known THEN 'not_found'
                    WHEN v_old.state IS NULL THEN 'not_terminal'
                    WHEN v_old.state = 'DISPATCHED' THEN 'already_accepted' END;
    IF verdict IS NULL THEN
      SELECT r.verdict, r.new_intent_id INTO verdict, new_intent_id
        FROM leasehold.redrive_intent(
          v_old.intent_id, leasehold.final_status(v_old.state, v_old.reason) = 'rejected', p_operator, p_note) AS r;
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.redrive_intents(uuid[], text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.redrive_intents(uuid[], text, text) TO leasehold_operator;
