-- Put every call in doubt that may be in flight under this lease: write one IN_DOUBT row each, with the
-- replaced holder as its holder. These are the rows that the holder began one by one, and the calls in its call
-- marks whose attempt is not on the ledger yet. Deletes the call marks.
-- Locks: the lease's call marks, then the pending rows by id. The caller holds the lease row.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.put_calls_in_doubt(p_lease_name text, p_replaced_holder text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_epoch bigint;
  v_marked_ids uuid[];
  v_marked_numbers integer[];
  v_ids uuid[];
  v_now timestamptz;
  v_outcomes leasehold.outcome[];
BEGIN
  SELECT max(mark.lease_epoch), coalesce(array_agg(call.intent_id), '{}'), array_agg(call.attempt_no)
    INTO v_epoch, v_marked_ids, v_marked_numbers
    FROM leasehold.call_marks mark
   CROSS JOIN unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no)
   WHERE mark.lease_name = p_lease_name;
  DELETE FROM leasehold.call_marks WHERE lease_name = p_lease_name;
  v_ids := v_marked_ids || ARRAY(SELECT intent_id FROM leasehold.outbox_pending
                                  WHERE lease_name = p_lease_name AND begun_epoch IS NOT NULL);
  IF cardinality(v_ids) = 0 THEN
    RETURN;
  END IF;
  PERFORM FROM leasehold.outbox_pending p WHERE p.intent_id = ANY (v_ids) ORDER BY p.intent_id FOR UPDATE;
  v_now := leasehold.announce_change();
  SELECT array_agg(leasehold.taken_over_outcome(p.intent_id, p_replaced_holder, p_lease_name, coalesce(p.begun_epoch, v_epoch)))
    INTO v_outcomes
    FROM leasehold.outbox_pending p
    LEFT JOIN (
      -- A call that was given back and then handed out again may be marked twice.
      SELECT DISTINCT intent_id, attempt_no
        FROM unnest(v_marked_ids, v_marked_numbers) AS marked (intent_id, attempt_no)) AS call
      ON call.intent_id = p.intent_id AND call.attempt_no = p.attempt_count + 1
   WHERE p.intent_id = ANY (v_ids) AND p.lease_name = p_lease_name
     AND (p.begun_epoch IS NOT NULL OR call.intent_id IS NOT NULL);
  PERFORM leasehold.append_attempts(coalesce(v_outcomes, '{}'), v_now, 'none');
END
$$;
REVOKE ALL ON FUNCTION leasehold.put_calls_in_doubt(text, text) FROM PUBLIC;
