-- Note what a person did to a stream. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.record_intervention(
  p_target text, p_stream text, p_action text, p_operator text, p_note text, p_intent_id uuid, p_paused_by text
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, leasehold, pg_temp AS $$
  INSERT INTO leasehold.stream_interventions (
    intervention_id, target, stream, action, operator, note, intent_id, paused_by, done_at)
    VALUES (leasehold.new_intent_id(), p_target, p_stream, p_action, p_operator, p_note, p_intent_id, p_paused_by,
            clock_timestamp())
$$;
REVOKE ALL ON FUNCTION leasehold.record_intervention(text, text, text, text, text, uuid, text) FROM PUBLIC;
