-- Whether a result tells of a call that had to be begun first and was not: for lookup, blind and
-- every stream the mark must be durable before the call. A row in doubt or awaiting confirmation may
-- have been asked about instead of called. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.is_unbegun_call(
  p_begun_at timestamptz, p_last_state text, p_scope text, p_guarantee text, p_state text
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_begun_at IS NULL
     AND p_state IN ('DISPATCHED', 'IN_DOUBT', 'SUBMITTED')
     AND (p_scope = 'stream' OR p_guarantee IN ('lookup', 'blind'))
     AND coalesce(p_last_state NOT IN ('IN_DOUBT', 'SUBMITTED'), true)
$$;
REVOKE ALL ON FUNCTION leasehold.is_unbegun_call(timestamptz, text, text, text, text) FROM PUBLIC;
