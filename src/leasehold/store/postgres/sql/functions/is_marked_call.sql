-- Say whether mark_calls marks a leader's call together with others. Otherwise begin_leased_attempts must begin
-- it by itself. True if the gateway recognises the key or the fencing token at any later time, and if the
-- attempt is a call and not a question about a submitted one. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.is_marked_call(
  p_guarantee text, p_key_window_seconds double precision, p_last_state text
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_guarantee IN ('keyed', 'fenced') AND p_key_window_seconds IS NULL
     AND coalesce(p_last_state <> 'SUBMITTED', true)
$$;
REVOKE ALL ON FUNCTION leasehold.is_marked_call(text, double precision, text) FROM PUBLIC;
