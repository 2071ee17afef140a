-- Say whether a result reports a call that should have been begun first, but was not. For lookup, blind and
-- every stream, the mark must be durable before the call. If the intent was in doubt or awaited confirmation,
-- the executor may only have asked about it, which needs no mark. Locks nothing.
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
