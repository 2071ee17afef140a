-- Append outcomes of rows that nobody is working on, for repair and operators (append_attempts without a fence), and continue
-- their streams: one in which an intent failed is paused as its contract says (pause_failed_streams), and one that nobody
-- holds gets its next head. A holder looks at its stream again by itself.
-- Returns what append_attempts returns.
-- Locks: as advance_streams. The caller has locked the lease rows of the streams, at least FOR NO KEY UPDATE, then the
-- pending rows, and has read the clock after that (p_now).
-- Raises: as append_attempts.
CREATE OR REPLACE FUNCTION leasehold.append_and_continue_streams(p_outcomes leasehold.outcome[], p_now timestamptz)
RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  -- Not WHERE scope = 'stream': if the table was small when this was planned, all rows of a partial index would be read.
  v_streams text[] := (SELECT array_agg(DISTINCT p.lease_name) FILTER (WHERE p.scope = 'stream')
                         FROM leasehold.outbox_pending p
                        WHERE p.intent_id = ANY (ARRAY(SELECT o.intent_id FROM unnest(p_outcomes) AS o)));
  v_failed uuid[] := '{}';
  v_reasons text[] := '{}';
BEGIN
  FOR intent_id, verdict, attempt_no, state, reason, due_at IN
    SELECT * FROM leasehold.append_attempts(p_outcomes, p_now, 'none')
  LOOP
    IF verdict = 'applied' AND state = 'FAILED' THEN
      v_failed := v_failed || intent_id;
      v_reasons := v_reasons || reason;
    END IF;
    RETURN NEXT;
  END LOOP;
  IF v_streams IS NOT NULL THEN
    PERFORM leasehold.pause_failed_streams(v_failed, v_reasons, p_now);
    -- A stream that somebody holds, or that somebody must look at, has a finite expiry.
    v_streams := ARRAY(SELECT l.lease_name FROM leasehold.leases l
                        WHERE l.lease_name = ANY (v_streams) AND l.expires_at = '-infinity');
    PERFORM leasehold.advance_streams(v_streams, '{}', p_free_idle => true, p_begin => false);
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.append_and_continue_streams(leasehold.outcome[], timestamptz) FROM PUBLIC;
