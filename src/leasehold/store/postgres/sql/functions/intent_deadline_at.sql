-- Return the deadline of a new intent: deadline_at, or now plus deadline_seconds of the intent or of its
-- contract; NULL if there is none. It ignores seconds that are out of bounds; intent_problem reports them.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.intent_deadline_at(
  p_deadline_at timestamptz, p_deadline_seconds double precision, p_contract_deadline_seconds double precision,
  p_now timestamptz
) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT coalesce(p_deadline_at, p_now + CASE
    WHEN coalesce(p_deadline_seconds, p_contract_deadline_seconds) BETWEEN 0 AND 315360000
    THEN make_interval(secs => coalesce(p_deadline_seconds, p_contract_deadline_seconds)) END)
$$;
REVOKE ALL ON FUNCTION leasehold.intent_deadline_at(timestamptz, double precision, double precision, timestamptz) FROM PUBLIC;
