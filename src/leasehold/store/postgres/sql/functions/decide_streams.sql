-- Decide what can be done next in streams, and what must change for it. Reads only; advance_streams does what was decided.
-- Returns one step for each stream, or one for each head if it is ready: up to batch_max consecutive heads under one contract,
-- which are all to be called, all in doubt, or all to be confirmed. Their places count from 1. A step with the place 0 only
-- changes a row.
-- stream_state: ready; waiting (the head is not due: wait_seconds, NULL if a person must decide); paused (the same); begun
-- (a call is in flight); drained (nothing is pending); recheck (nothing is visible, but p_enqueued_to says that an enqueuer's
-- transaction is open).
-- is_settled: no call is in flight and nobody must look again, so the stream can be freed without an expiry.
-- While pipeline_max rows await their confirmation, no further one is called. Whatever has been due longer is next: the head,
-- or the rows to ask about (is_asking).
-- The contents that one call returns have a budget, 8 MiB, so that a few large payloads never make it so slow that it fails for
-- all streams. Those that have been due longest come first; the first of them is always served. The others are waiting,
-- although they are due. The further heads of a stream have an equal part of the budget.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.decide_streams(
  p_lease_names text[], p_continued text[], p_enqueued_to text[], p_free_idle boolean, p_begin boolean, p_now timestamptz
) RETURNS SETOF leasehold.stream_step
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  c_bytes_max CONSTANT bigint := 8388608;
BEGIN
  RETURN QUERY
  WITH turned AS MATERIALIZED (
    -- next_id is the row by which claimers find the stream: the head, or the first row to ask about. If the head waits for
    -- answers, the stream is due at the deadline of the head at the latest, because the head must end then.
    SELECT looked.*, is_asking,
           p_continued IS NULL OR lease_name IN (SELECT unnest(p_continued)) AS is_continued,
           CASE WHEN is_asking THEN awaited_id ELSE head_id END AS next_id,
           CASE WHEN is_asking THEN is_awaited_claimable ELSE is_head_claimable END AS is_next_claimable,
           CASE WHEN is_asking THEN awaited_due_at ELSE head_due_at END AS next_due_at,
           CASE WHEN is_asking THEN awaited_bytes ELSE head_bytes END AS next_bytes,
           CASE WHEN NOT is_asking THEN head_due_at
                WHEN head_action = 'call' THEN least(awaited_due_at, head_deadline_at)
                ELSE awaited_due_at END AS due_at
      FROM leasehold.look_at_streams(p_lease_names, p_now) AS looked
     CROSS JOIN LATERAL (
       SELECT coalesce(awaited_id IS NOT NULL AND (
         head_id IS NULL OR head_action = 'call' AND room <= 0 OR awaited_due_at < head_due_at), false) AS is_asking) AS turn
  ), found AS MATERIALIZED (
    SELECT turned.*, CASE
             WHEN is_begun THEN 'begun'
             -- Whoever resumes it looks at it. Nobody does when a pause for a time is over, so that one must have a head.
             WHEN paused_until = 'infinity' THEN 'paused'
             WHEN lease_name = ANY (p_enqueued_to) AND (due_at <= p_now) IS NOT TRUE THEN 'recheck'
             WHEN paused_until > p_now THEN 'paused'
             WHEN due_at <= p_now THEN 'ready'
             WHEN next_id IS NOT NULL THEN 'waiting'
             ELSE 'drained' END AS found_state
      FROM turned
  ), budgeted AS MATERIALIZED (
    SELECT found.*, c_bytes_max / count(*) OVER (PARTITION BY found_state = 'ready' AND is_continued) AS batch_bytes,
           CASE WHEN found_state = 'ready' AND is_continued AND row_number() OVER served > 1
                     AND sum(next_bytes) OVER served > c_bytes_max THEN 'waiting'
                ELSE found_state END AS stream_state
      FROM found
    WINDOW served AS (PARTITION BY found_state = 'ready' AND is_continued ORDER BY due_at, lease_name)
  ), decided AS MATERIALIZED (
    SELECT budgeted.*,
           is_continued AND (stream_state IN ('ready', 'begun', 'recheck') OR NOT p_free_idle) AS is_held,
           stream_state NOT IN ('begun', 'recheck') AS is_settled
      FROM budgeted
  ), marked AS MATERIALIZED (
    -- While somebody holds a stream, claimers pass over its head, also if it is marked as claimable.
    SELECT decided.*, stream_state = 'ready' AND is_held AS is_given,
           NOT is_held AND is_settled AND paused_until IS DISTINCT FROM 'infinity' AS is_claimable,
           CASE WHEN NOT is_held AND is_settled AND paused_until IS DISTINCT FROM 'infinity'
                THEN greatest(least(next_due_at, due_at), nullif(paused_until, 'infinity'),
                              CASE WHEN expires_at > '-infinity' OR NOT is_next_claimable THEN p_now END)
                ELSE next_due_at END AS row_due_at,
           CASE WHEN stream_state IN ('waiting', 'paused') THEN extract(epoch FROM
             nullif(CASE stream_state WHEN 'paused' THEN paused_until ELSE due_at END, 'infinity') - p_now
           )::double precision END AS wait_seconds
      FROM decided
  )
  SELECT lease_name, lease_epoch, expires_at, grace_expires_at, target, stream, stream_state, wait_seconds, is_continued, is_held,
         is_settled, step.place::integer, step.row_id, step.is_given, step.is_begun_now, step.is_claimable, step.row_due_at,
         step.is_begun_now OR step.is_claimable <> step.was_claimable OR step.row_due_at <> step.was_due_at
    FROM marked
   CROSS JOIN LATERAL (
     SELECT 1 AS place, next_id AS row_id, false AS is_given, false AS is_begun_now, marked.is_claimable, marked.row_due_at,
            is_next_claimable AS was_claimable, next_due_at AS was_due_at
      WHERE NOT marked.is_given
      UNION ALL
     SELECT given.place, given.intent_id, true,
            p_begin AND NOT is_asking AND head_action = 'call' AND expires_at > p_now,
            false, given.due_at, given.is_claimable, given.due_at
       FROM (
         SELECT 1 AS place, head_id AS intent_id, head_due_at AS due_at, is_head_claimable AS is_claimable
          WHERE marked.is_given AND NOT is_asking AND batch_max = 1
          UNION ALL
         SELECT batch.* FROM leasehold.due_batch(
             target, stream, head_seq, head_version, head_action, greatest(least(batch_max, room), 1), batch_bytes, p_now) AS batch
          WHERE marked.is_given AND NOT is_asking AND batch_max > 1
          UNION ALL
         SELECT awaited.* FROM leasehold.due_confirmations(target, stream, awaited_version, batch_bytes, p_now) AS awaited
          WHERE marked.is_given AND is_asking) AS given
      UNION ALL
     -- The head does not lead to the stream while others must be asked about first.
     SELECT 0, head_id, false, false, false, head_due_at, is_head_claimable, head_due_at
      WHERE is_asking AND is_head_claimable) AS step;
END
$$;
REVOKE ALL ON FUNCTION leasehold.decide_streams(text[], text[], text[], boolean, boolean, timestamptz) FROM PUBLIC;
