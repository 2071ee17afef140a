-- Advance streams that the caller has locked: decide what can be done next in each (decide_streams), begin and mark their heads,
-- free those that are not held any longer, and return what was decided, with the content of the heads.
-- p_continued are the streams that the caller wants to continue with (NULL: all); with p_free_idle only as long as there is
-- work that is due. One row per stream, or one per head if it is ready; stream_state is explained in decide_streams.
-- With p_begin, heads that can be called are begun: begun_at is set. Heads in doubt or to be confirmed need no mark. A head is
-- begun only before the first expiry of the lease.
-- A freed stream gets the expiry -infinity, and its head becomes claimable and due now at the earliest, behind the heads
-- of other streams that are due. A stream that is begun or must be looked at again gets a finite expiry instead,
-- so that the next claim finds it.
-- If somebody else has locked a row that must change, for example a person in an open transaction, the state of its stream is recheck;
-- if it is not the first of a batch, the batch ends before it.
-- p_token_floor is the floor of the tokens of the heads that are returned (require_generation). Without heads it is not needed.
-- Locks: the lease rows, already locked by the caller, at least FOR NO KEY UPDATE; rows of streams (lock_settled_streams);
-- then the pending rows that change FOR NO KEY UPDATE, SKIP LOCKED. Only a holder of their lease row changes these.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.advance_streams(
  p_lease_names text[], p_continued text[], p_free_idle boolean, p_begin boolean, p_token_floor bigint DEFAULT NULL
) RETURNS SETOF leasehold.stream_work
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_enqueued_to text[] := leasehold.lock_settled_streams(p_lease_names);
  v_steps leasehold.stream_step[];
  v_locked_by_others uuid[];
BEGIN
  v_steps := ARRAY(
    SELECT decided::leasehold.stream_step
      FROM leasehold.decide_streams(p_lease_names, p_continued, v_enqueued_to, p_free_idle, p_begin, v_now) AS decided);
  WITH ours AS MATERIALIZED (
    SELECT p.intent_id FROM leasehold.outbox_pending p
     WHERE p.intent_id = ANY (ARRAY(SELECT s.row_id FROM unnest(v_steps) AS s WHERE s.is_row_changed))
       FOR NO KEY UPDATE SKIP LOCKED
  )
  SELECT array_agg(s.row_id) INTO v_locked_by_others
    FROM unnest(v_steps) AS s WHERE s.is_row_changed AND s.row_id NOT IN (SELECT ours.intent_id FROM ours);
  IF v_locked_by_others IS NOT NULL THEN
    v_steps := leasehold.pass_over_locked(v_steps, v_locked_by_others);
  END IF;

  UPDATE leasehold.leases l
     SET expires_at = CASE WHEN s.is_settled THEN '-infinity'
                           WHEN l.expires_at = '-infinity' THEN v_now  -- nobody held it
                           ELSE least(l.expires_at, v_now) END,
         grace_expires_at = CASE WHEN s.is_settled THEN '-infinity' ELSE v_now END, lease_seconds = 0, grace_seconds = 0
    FROM unnest(v_steps) AS s WHERE s.place = 1 AND NOT s.is_held AND l.lease_name = s.lease_name;
  UPDATE leasehold.outbox_pending p
     SET is_claimable = s.is_claimable, due_at = s.row_due_at,
         begun_at = CASE WHEN s.is_begun_now THEN v_now ELSE p.begun_at END,
         first_tried_at = CASE WHEN s.is_begun_now THEN coalesce(p.first_tried_at, v_now) ELSE p.first_tried_at END
    FROM unnest(v_steps) AS s WHERE s.is_row_changed AND p.intent_id = s.row_id;

  RETURN QUERY
  SELECT s.lease_name, s.lease_epoch, s.expires_at, s.grace_expires_at, s.target, s.stream, s.stream_state, s.wait_seconds,
         s.is_held, false, p.intent_id, p.contract_version, p.attempt_count + 1, p.last_state, p.reference, p.priority,
         i.submission_key, leasehold.fencing_token(p_token_floor, i.token_base, s.lease_epoch, p.attempt_count + 1),
         i.payload, i.body, i.content_type, i.metadata, i.trace_context, i.created_at, p.due_at, p.deadline_at,
         p.first_tried_at, CASE WHEN s.is_begun_now THEN v_now END, v_now
    FROM unnest(v_steps) AS s
    LEFT JOIN leasehold.outbox_pending p ON s.is_given AND p.intent_id = s.row_id
    LEFT JOIN leasehold.intents i ON i.intent_id = p.intent_id
   WHERE s.place > 0
   ORDER BY s.lease_name, s.place;
END
$$;
REVOKE ALL ON FUNCTION leasehold.advance_streams(text[], text[], boolean, boolean, bigint) FROM PUBLIC;
