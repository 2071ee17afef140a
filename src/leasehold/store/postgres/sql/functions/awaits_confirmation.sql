-- Whether a pending row of a stream awaits its confirmation while the rows behind it go on: it is SUBMITTED, not held for a
-- person, and its contract has a pipeline. The head of a stream is its first row that does not.
-- A stream has at most 100 such rows at a time (pipeline_max).
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.awaits_confirmation(
  p_last_state text, p_due_at timestamptz, p_target text, p_contract_version integer
) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT coalesce(p_last_state = 'SUBMITTED' AND p_due_at < 'infinity' AND (
    SELECT true FROM leasehold.contracts c
     WHERE c.target = p_target AND c.version = p_contract_version AND c.pipeline_max > 1), false)
$$;
REVOKE ALL ON FUNCTION leasehold.awaits_confirmation(text, timestamptz, text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.awaits_confirmation(text, timestamptz, text, integer)
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
