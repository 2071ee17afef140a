-- Pause a stream in the name of an operator: nothing of it is begun until p_seconds have passed, or without them until
-- resume_stream. A call in flight goes on and is recorded. A pause takes the place of an earlier one. It is noted in
-- stream_interventions.
-- Verdicts: paused; not_found (no such stream).
-- Locks: as lock_stream_for_intervention. Reads the clock after that. Then as next_stream_heads.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.pause_stream(
  p_target text, p_stream text, p_operator text, p_note text, p_seconds double precision DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
  v_now timestamptz;
BEGIN
  IF p_seconds IS NOT NULL THEN
    PERFORM leasehold.require_between('p_seconds', p_seconds, 0.001, 2592000);
  END IF;
  v_lease := leasehold.lock_stream_for_intervention(p_target, p_stream, p_operator, p_note);
  IF v_lease.lease_name IS NULL THEN
    RETURN 'not_found';
  END IF;
  v_now := clock_timestamp();
  UPDATE leasehold.leases l
     SET paused_since = v_now, paused_until = coalesce(v_now + make_interval(secs => p_seconds), 'infinity'),
         paused_by = p_operator, pause_note = p_note, paused_for = NULL
   WHERE l.lease_name = v_lease.lease_name;
  PERFORM leasehold.undo_pause(v_lease, v_now);
  IF v_lease.expires_at = '-infinity' THEN
    PERFORM leasehold.next_stream_heads(ARRAY[v_lease.lease_name], '{}', p_free_idle => true, p_begin => false);
  END IF;
  PERFORM leasehold.record_intervention(p_target, p_stream, 'pause', p_operator, p_note, NULL);
  RETURN 'paused';
END
$$;
REVOKE ALL ON FUNCTION leasehold.pause_stream(text, text, text, text, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.pause_stream(text, text, text, text, double precision) TO leasehold_operator;
