-- Pause a stream in the name of an operator: nothing of it is begun until p_seconds have passed, or without them until
-- resume_stream. A call in flight goes on and is recorded. The pause takes the place of an earlier one of the same operator. It ends
-- no other reason for which the stream stands still: not a pause of somebody else, and not a failed intent. It is noted in
-- stream_interventions.
-- Verdicts: paused; not_found (no such stream).
-- Locks: as lock_stream_for_intervention. Reads the clock after that. Then as advance_streams.
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
  PERFORM leasehold.end_stream_pauses(v_lease, 'person', ARRAY[p_operator], v_now);
  INSERT INTO leasehold.stream_pauses (lease_name, kind, name, paused_since, paused_until, note)
  VALUES (v_lease.lease_name, 'person', p_operator, v_now,
          coalesce(v_now + make_interval(secs => p_seconds), 'infinity'), p_note);
  PERFORM leasehold.apply_stream_pauses(ARRAY[v_lease.lease_name], v_now);
  IF v_lease.expires_at = '-infinity' THEN
    PERFORM leasehold.advance_streams(ARRAY[v_lease.lease_name], '{}', p_free_idle => true, p_begin => false);
  END IF;
  PERFORM leasehold.record_intervention(p_target, p_stream, 'pause', p_operator, p_note, NULL, NULL);
  RETURN 'paused';
END
$$;
REVOKE ALL ON FUNCTION leasehold.pause_stream(text, text, text, text, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.pause_stream(text, text, text, text, double precision) TO leasehold_operator;
