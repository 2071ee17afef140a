-- Say whether the lost database may have sent an unfinished intent so that sending it again could repeat its effect, or so that its
-- deadline could end it as exhausted although it had its effect. If the gateway knows the key or the token for ever, only the
-- deadline counts. Not if the intent is submitted or held, because then nothing is sent without an
-- answer of the gateway or of a person; and not before it could be due. It may have been due before its due time there if an
-- operator could hasten it: if it waits for a backoff, because its call was deferred, or for the end of a pause of its stream.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.may_be_sent_unseen(
  p_guarantee text, p_key_window_seconds double precision, p_pending leasehold.outbox_pending, p_now timestamptz
) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT (p_guarantee IN ('lookup', 'blind') OR p_guarantee = 'keyed' AND p_key_window_seconds IS NOT NULL
          OR p_pending.deadline_at IS NOT NULL)
     AND p_pending.last_state IS DISTINCT FROM 'SUBMITTED'
     AND p_pending.due_at < 'infinity'
     AND (p_pending.due_at <= p_now
          OR num_nonnulls(p_pending.first_tried_at, p_pending.last_state, p_pending.deferred_since) > 0
          OR EXISTS (SELECT FROM leasehold.stream_pauses s
                      WHERE s.lease_name = p_pending.lease_name AND p_pending.scope = 'stream'
                        AND s.paused_until < 'infinity' AND p_pending.due_at <= s.paused_until))
$$;
REVOKE ALL ON FUNCTION leasehold.may_be_sent_unseen(text, double precision, leasehold.outbox_pending, timestamptz)
  FROM PUBLIC;
