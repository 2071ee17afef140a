-- Say whether the lost database may have sent an unfinished intent so that sending it again could repeat its effect. Not if the
-- gateway knows the key or the token for ever; not if the intent is submitted or held, because then nothing is sent without an
-- answer of the gateway or of a person; and not before it was first due. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.may_be_sent_unseen(
  p_guarantee text, p_key_window_seconds double precision, p_last_state text, p_first_tried_at timestamptz,
  p_due_at timestamptz, p_now timestamptz
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT (p_guarantee IN ('lookup', 'blind') OR p_guarantee = 'keyed' AND p_key_window_seconds IS NOT NULL)
     AND p_last_state IS DISTINCT FROM 'SUBMITTED'
     AND (p_due_at <= p_now OR p_first_tried_at IS NOT NULL AND p_due_at < 'infinity')
$$;
REVOKE ALL ON FUNCTION leasehold.may_be_sent_unseen(text, double precision, text, timestamptz, timestamptz, timestamptz)
  FROM PUBLIC;
