-- Say what is to be done with a due row of a stream: IN_DOUBT or SUBMITTED (ask about it), finish (no attempt or no time is
-- left) or call. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.head_action(
  p_last_state text, p_attempt_count integer, p_deadline_at timestamptz, p_now timestamptz
) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_last_state IN ('IN_DOUBT', 'SUBMITTED') THEN p_last_state
              WHEN p_attempt_count >= 20 OR p_deadline_at <= p_now THEN 'finish'
              ELSE 'call' END
$$;
REVOKE ALL ON FUNCTION leasehold.head_action(text, integer, timestamptz, timestamptz) FROM PUBLIC;
