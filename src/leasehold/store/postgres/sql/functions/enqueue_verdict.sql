-- Return the verdict on one new intent. A known key with the same content is a duplicate even if the intent
-- could no longer be accepted, for example because its deadline has passed since. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.enqueue_verdict(p_is_new boolean, p_is_same_as_first boolean, p_problem text)
RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_is_new THEN 'accepted'
              WHEN p_is_same_as_first THEN 'duplicate'
              WHEN p_problem IN ('unknown_target', 'too_large') THEN p_problem
              WHEN p_problem IS NOT NULL THEN 'invalid'
              ELSE 'conflict' END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_verdict(boolean, boolean, text) FROM PUBLIC;
