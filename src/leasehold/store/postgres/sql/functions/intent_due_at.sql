-- When a new intent is first due: at due_at, after delay_seconds, or now. Locks nothing.
-- A delay that no interval can hold is left for intent_problem to name.
CREATE OR REPLACE FUNCTION leasehold.intent_due_at(
  p_due_at timestamptz, p_delay_seconds double precision, p_now timestamptz
) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT coalesce(p_due_at, p_now + CASE WHEN p_delay_seconds BETWEEN 0 AND 315360000
                                         THEN make_interval(secs => p_delay_seconds) ELSE interval '0' END)
$$;
REVOKE ALL ON FUNCTION leasehold.intent_due_at(timestamptz, double precision, timestamptz) FROM PUBLIC;
