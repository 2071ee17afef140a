-- Return when a new intent is first due: at due_at, after delay_seconds, or now; never before now, for executors do not
-- look at times that they have passed. It ignores a delay that is out of bounds; intent_problem reports it. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.intent_due_at(
  p_due_at timestamptz, p_delay_seconds double precision, p_now timestamptz
) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT greatest(p_now, coalesce(p_due_at, p_now + CASE WHEN p_delay_seconds BETWEEN 0 AND 315360000
                                         THEN make_interval(secs => p_delay_seconds) ELSE interval '0' END))
$$;
REVOKE ALL ON FUNCTION leasehold.intent_due_at(timestamptz, double precision, timestamptz) FROM PUBLIC;
