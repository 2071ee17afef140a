-- The deadline of a new intent: deadline_at, or now plus deadline_seconds, its own or its contract's; NULL for
-- none. Locks nothing. A number of seconds that no interval can hold is left for intent_problem to name.
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
