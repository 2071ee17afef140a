-- Refuse an intervention that cannot be audited, because it lacks the intent, the operator or the note. Locks
-- nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_intervention(p_intent_id uuid, p_operator text, p_note text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF p_intent_id IS NULL THEN
    RAISE EXCEPTION 'p_intent_id is NULL' USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_name('p_operator', p_operator, 128);
  PERFORM leasehold.require_between('the length of p_note', length(p_note), 1, 2000);
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_intervention(uuid, text, text) FROM PUBLIC;
