-- Return the user's word for a terminal ledger row: accepted, rejected, exhausted or cancelled.
-- The readers of the view intent_status may execute it, because a function in a view runs with the rights of
-- the reader. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.final_status(p_state text, p_reason text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE p_state
    WHEN 'DISPATCHED' THEN 'accepted'
    WHEN 'CANCELLED' THEN 'cancelled'
    WHEN 'FAILED' THEN
      CASE WHEN p_reason IN ('max_attempts', 'deadline_exceeded', 'one_shot') THEN 'exhausted' ELSE 'rejected' END
  END
$$;
REVOKE ALL ON FUNCTION leasehold.final_status(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.final_status(text, text)
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
