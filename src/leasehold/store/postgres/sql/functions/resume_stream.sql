-- End a reason for which a stream stands still, in the name of an operator. p_paused_for is a failed intent: ends its pause,
-- and those of intents that failed before it or with it, but of none that failed later. p_paused_by is the person whose pause ends;
-- without both, it is the operator's own. If no other reason stands, the head can be claimed again at once, or when it is due.
-- It is noted in stream_interventions, one row for each reason.
-- Verdicts: resumed; still_paused (this reason has ended, but another one stands); not_paused (the stream does not stand still
-- for this reason; it may for another one); not_found (no such stream).
-- Locks: as lock_stream_for_intervention. Reads the clock after that. Then as advance_streams.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.resume_stream(
  p_target text, p_stream text, p_operator text, p_note text, p_paused_by text DEFAULT NULL, p_paused_for uuid DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
  v_now timestamptz;
  v_kind text := CASE WHEN p_paused_for IS NULL THEN 'person' ELSE 'failure' END;
  v_names text[];
BEGIN
  IF num_nonnulls(p_paused_by, p_paused_for) > 1 THEN
    RAISE EXCEPTION 'paused_by and paused_for exclude each other' USING ERRCODE = '22023';
  ELSIF p_paused_by IS NOT NULL THEN
    PERFORM leasehold.require_name('p_paused_by', p_paused_by, 128);
  END IF;
  v_lease := leasehold.lock_stream_for_intervention(p_target, p_stream, p_operator, p_note);
  IF v_lease.lease_name IS NULL THEN
    RETURN 'not_found';
  END IF;
  v_now := clock_timestamp();
  v_names := ARRAY(
    SELECT s.name FROM leasehold.stream_pauses s
      JOIN leasehold.stream_pauses named
        ON named.lease_name = s.lease_name AND named.kind = s.kind AND named.paused_until > v_now
       AND named.name = coalesce(p_paused_for::text, p_paused_by, p_operator)
     WHERE s.lease_name = v_lease.lease_name AND s.kind = v_kind AND s.paused_until > v_now
       AND (s.name = named.name OR v_kind = 'failure' AND s.paused_since <= named.paused_since)
     ORDER BY s.paused_since, s.name);
  IF cardinality(v_names) = 0 THEN
    RETURN 'not_paused';
  END IF;
  PERFORM leasehold.end_stream_pauses(v_lease, v_kind, v_names, v_now);
  PERFORM leasehold.apply_stream_pauses(ARRAY[v_lease.lease_name], v_now);
  IF v_lease.expires_at = '-infinity' THEN
    PERFORM leasehold.advance_streams(ARRAY[v_lease.lease_name], '{}', p_free_idle => true, p_begin => false);
  END IF;
  PERFORM leasehold.record_intervention(p_target, p_stream, 'resume', p_operator, p_note,
                                        CASE v_kind WHEN 'failure' THEN ended.name::uuid END,
                                        CASE v_kind WHEN 'person' THEN ended.name END)
     FROM unnest(v_names) AS ended (name);
  RETURN CASE WHEN EXISTS (SELECT FROM leasehold.stream_pauses WHERE lease_name = v_lease.lease_name) THEN 'still_paused'
              ELSE 'resumed' END;
END
$$;
REVOKE ALL ON FUNCTION leasehold.resume_stream(text, text, text, text, text, uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.resume_stream(text, text, text, text, text, uuid) TO leasehold_operator;
