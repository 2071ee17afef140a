-- Put every call that was begun under this lease in doubt: one IN_DOUBT row each, in the name of the
-- holder who began it. They are as many as that holder had in flight.
-- Locks: the begun rows, by id, after the lease row that the caller holds. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.doubt_begun_calls(p_lease_name text, p_replaced_holder text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_ids uuid[];
  v_now timestamptz;
  v_outcomes leasehold.outcome[];
BEGIN
  v_ids := ARRAY(SELECT intent_id FROM leasehold.outbox_pending
                  WHERE lease_name = p_lease_name AND begun_epoch IS NOT NULL
                  ORDER BY intent_id FOR UPDATE);
  IF cardinality(v_ids) = 0 THEN
    RETURN;
  END IF;
  v_now := leasehold.announce_change();
  SELECT array_agg(ROW (p.intent_id, 'IN_DOUBT', p_replaced_holder, 'lease_taken_over', NULL,
                        p_lease_name, p.begun_epoch, NULL, NULL,
                        'the lease was taken over while the call was in flight', 1, NULL)::leasehold.outcome)
    INTO v_outcomes
    FROM leasehold.outbox_pending p WHERE p.intent_id = ANY (v_ids) AND p.begun_epoch IS NOT NULL;
  PERFORM leasehold.append_attempts(v_outcomes, v_now, 'none');
END
$$;
REVOKE ALL ON FUNCTION leasehold.doubt_begun_calls(text, text) FROM PUBLIC;
