-- Resume a paused stream in the name of an operator, whoever paused it: its head can be claimed again at once, or when it is
-- due. It is noted in stream_interventions, with the intent whose failure had paused the stream.
-- Verdicts: resumed; not_paused; not_found (no such stream).
-- Locks: as lock_stream_for_intervention. Then as next_stream_heads.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.resume_stream(p_target text, p_stream text, p_operator text, p_note text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
BEGIN
  v_lease := leasehold.lock_stream_for_intervention(p_target, p_stream, p_operator, p_note);
  IF v_lease.lease_name IS NULL THEN
    RETURN 'not_found';
  ELSIF v_lease.paused_since IS NULL THEN
    RETURN 'not_paused';
  END IF;
  UPDATE leasehold.leases l
     SET paused_since = NULL, paused_until = NULL, paused_by = NULL, pause_note = NULL, paused_for = NULL
   WHERE l.lease_name = v_lease.lease_name;
  PERFORM leasehold.undo_pause(v_lease, clock_timestamp());
  IF v_lease.expires_at = '-infinity' THEN
    PERFORM leasehold.next_stream_heads(ARRAY[v_lease.lease_name], '{}', p_free_idle => true, p_begin => false);
  END IF;
  PERFORM leasehold.record_intervention(p_target, p_stream, 'resume', p_operator, p_note, v_lease.paused_for);
  RETURN 'resumed';
END
$$;
REVOKE ALL ON FUNCTION leasehold.resume_stream(text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.resume_stream(text, text, text, text) TO leasehold_operator;
