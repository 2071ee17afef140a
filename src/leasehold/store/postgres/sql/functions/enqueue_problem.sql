-- Return the problem that enqueue_intents and enqueue_intent tell with a verdict; NULL if there is none. p_difference comes
-- from key_difference, p_problem from intent_problem. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.enqueue_problem(
  p_verdict text, p_target text, p_is_body boolean, p_content_bytes integer, p_difference text, p_problem text
) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT CASE p_verdict
    WHEN 'unknown_target' THEN format('no contract is published for target %L', p_target)
    WHEN 'too_large' THEN format(
      CASE WHEN p_is_body THEN 'body has %s bytes; the limit is %s' ELSE 'payload has %s bytes as text; the limit is %s' END,
      p_content_bytes, 1048576)
    WHEN 'conflict' THEN p_difference
    WHEN 'invalid' THEN p_problem END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_problem(text, text, boolean, integer, text, text) FROM PUBLIC;
