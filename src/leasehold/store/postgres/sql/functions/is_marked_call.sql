-- Whether a leader's call is marked together with others before it is made, and not begun by itself
-- (begin_leased_attempts): its gateway knows the key or the token whenever it comes, and it is a call and not a
-- question about one. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.is_marked_call(
  p_guarantee text, p_key_window_seconds double precision, p_last_state text
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_guarantee IN ('keyed', 'fenced') AND p_key_window_seconds IS NULL
     AND coalesce(p_last_state <> 'SUBMITTED', true)
$$;
REVOKE ALL ON FUNCTION leasehold.is_marked_call(text, double precision, text) FROM PUBLIC;
