-- Look at streams that the caller has locked, return what can be done next in each, and free those that are not kept.
-- p_kept are the streams that the caller wants to go on with (NULL: all); with p_free_idle only as long as there is work that is due.
-- One row per stream, or one per head if it is ready: up to batch_max consecutive heads under one contract, which are all to
-- be called, all in doubt, or all to be confirmed.
-- The head is the first row that does not await its confirmation in a pipeline (awaits_confirmation). While pipeline_max rows
-- do, no further one is called. Whatever has been due longer is next: the head, or the rows to ask about.
-- stream_state: ready; waiting (the head is not due: wait_seconds, NULL if a person must decide); paused (the same); begun
-- (a call is in flight); drained (nothing is pending); look_again (the stream must be looked at again later: either nothing
-- is visible, but an enqueuer's transaction is open, which saw the former head and will not make its row a head; or
-- somebody has locked a pending row that must change, for example a person in an open transaction).
-- To tell drained from look_again, the function takes the row of the stream, SKIP LOCKED, and looks again in a new
-- statement: whoever has the lock knows that no enqueuer is open. It never waits for anybody.
-- A batch ends before a row that somebody has locked.
-- The contents that one call returns have a budget, 8 MiB, so that a few large payloads never make it so slow that it fails for
-- all streams. Those that have been due longest come first; the first of them is always served. The others are waiting,
-- although they are due. The further heads of a stream have an equal part of the budget.
-- A freed stream gets the expiry -infinity, and its head becomes claimable and due now at the earliest, behind the heads
-- of other streams that are due. A stream that is begun or must be looked at again gets a finite expiry instead,
-- so that the next claim finds it.
-- With p_begin, heads that can be called are begun: begun_at is set. Heads in doubt or to be confirmed need no mark.
-- A head is begun only before the first expiry of the lease.
-- p_token_floor is the floor of the tokens of the heads that are returned (require_generation). Without heads it is not needed.
-- Locks: the lease rows, already locked by the caller, at least FOR NO KEY UPDATE; rows of streams FOR SHARE, SKIP LOCKED;
-- then the pending rows that change FOR NO KEY UPDATE, SKIP LOCKED. Only a holder of their lease row changes these.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.next_stream_heads(
  p_lease_names text[], p_kept text[], p_free_idle boolean, p_begin boolean, p_token_floor bigint DEFAULT NULL
) RETURNS SETOF leasehold.stream_work
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  c_bytes_max CONSTANT bigint := 8388608;
  v_now timestamptz := clock_timestamp();
  v_empty text[];
  v_enqueued_to text[] := '{}';
  v_pipelined text[] := ARRAY(SELECT DISTINCT c.target FROM leasehold.contracts c WHERE c.pipeline_max > 1);
BEGIN
  v_empty := ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (p_lease_names)
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream
               AND NOT p.awaits_confirmation
             ORDER BY p.stream_seq LIMIT 1) IS NULL);
  IF cardinality(v_empty) > 0 THEN
    WITH settled AS MATERIALIZED (
      SELECT l.lease_name FROM leasehold.leases l
        JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
       WHERE l.lease_name = ANY (v_empty)
         FOR SHARE OF s SKIP LOCKED
    )
    SELECT coalesce(array_agg(name), '{}') INTO v_enqueued_to
      FROM unnest(v_empty) AS name WHERE name NOT IN (SELECT settled.lease_name FROM settled);
  END IF;

  RETURN QUERY
  WITH looked AS MATERIALIZED (
    SELECT l.lease_name, l.lease_epoch, l.expires_at, l.grace_expires_at, l.target, l.stream, l.paused_until,
           p_kept IS NULL OR l.lease_name IN (SELECT unnest(p_kept)) AS is_kept,
           head.intent_id AS head_id, head.stream_seq, head.due_at AS head_due_at, head.deadline_at,
           head.contract_version, head.step, head.content_bytes AS head_bytes,
           awaited.intent_id AS awaited_id, awaited.due_at AS awaited_due_at,
           awaited.contract_version AS awaited_version, awaited.content_bytes AS awaited_bytes, c.batch_max,
           coalesce(CASE WHEN head.intent_id IS NULL AND l.target <> ALL (v_pipelined) THEN false
                         WHEN c.batch_max = 1 AND l.target <> ALL (v_pipelined) THEN head.begun_at IS NOT NULL
                         WHEN l.target = ANY (v_pipelined) THEN leasehold.is_stream_begun(l.target, l.stream)
                         ELSE leasehold.is_stream_begun(l.target, l.stream, c.batch_max) END, false) AS is_begun,
           -- How many more rows may be called: without a pipeline, and without rows of a former one, a whole batch.
           CASE WHEN c.pipeline_max = 1 AND coalesce(awaited.rows, 0) = 0 THEN c.batch_max
                ELSE c.pipeline_max - coalesce(awaited.rows, 0) END AS room
      FROM leasehold.leases l
      LEFT JOIN LATERAL (
        SELECT p.intent_id, p.stream_seq, p.due_at, p.deadline_at, p.contract_version, p.begun_at, p.content_bytes,
               leasehold.head_action(p.last_state, p.attempt_count, p.deadline_at, v_now) AS step
          FROM leasehold.outbox_pending p
         WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream
           AND NOT p.awaits_confirmation
         ORDER BY p.stream_seq LIMIT 1) AS head ON true
      LEFT JOIN LATERAL (
        SELECT (array_agg(p.intent_id ORDER BY p.due_at, p.stream_seq))[1] AS intent_id, min(p.due_at) AS due_at,
               (array_agg(p.contract_version ORDER BY p.due_at, p.stream_seq))[1] AS contract_version,
               max(p.content_bytes) AS content_bytes, count(*)::integer AS rows
          FROM (SELECT p.intent_id, p.stream_seq, p.due_at, p.contract_version, p.content_bytes FROM leasehold.outbox_pending p
                 WHERE l.target = ANY (v_pipelined) AND p.scope = 'stream' AND p.awaits_confirmation
                   AND p.target = l.target AND p.stream = l.stream
                 ORDER BY p.stream_seq LIMIT 100) AS p) AS awaited ON l.target = ANY (v_pipelined)
      LEFT JOIN leasehold.contracts c ON c.target = l.target AND c.version = head.contract_version
     WHERE l.lease_name = ANY (p_lease_names)
  ), chosen AS MATERIALIZED (
    -- next_id is the row that leads to the stream, when it is due: the head, or the first one to ask about. The latter is due at
    -- the deadline of a head that waits for it at the latest: then the head must end.
    SELECT looked.*, is_asking, CASE WHEN is_asking THEN awaited_id ELSE head_id END AS next_id,
           CASE WHEN NOT is_asking THEN head_due_at
                WHEN step = 'call' THEN least(awaited_due_at, deadline_at)
                ELSE awaited_due_at END AS due_at
      FROM looked
     CROSS JOIN LATERAL (
       SELECT coalesce(awaited_id IS NOT NULL AND (
         head_id IS NULL OR step = 'call' AND room <= 0 OR awaited_due_at < head_due_at), false) AS is_asking) AS turn
  ), judged AS MATERIALIZED (
    SELECT chosen.*, CASE
             WHEN is_begun THEN 'begun'
             -- Whoever resumes it looks at it. Nobody does when a pause for a time is over, so that one must have a head.
             WHEN paused_until = 'infinity' THEN 'paused'
             WHEN lease_name = ANY (v_enqueued_to) AND (due_at <= v_now) IS NOT TRUE THEN 'look_again'
             WHEN paused_until > v_now THEN 'paused'
             WHEN due_at <= v_now THEN 'ready'
             WHEN next_id IS NOT NULL THEN 'waiting'
             ELSE 'drained' END AS stream_state_alone
      FROM chosen
  ), counted AS MATERIALIZED (
    SELECT judged.*, stream_state_alone = 'ready' AND is_kept AS is_served,
           row_number() OVER waiting AS number,
           sum(CASE WHEN is_asking THEN awaited_bytes ELSE head_bytes END) OVER waiting AS bytes,
           c_bytes_max / count(*) OVER (PARTITION BY stream_state_alone = 'ready' AND is_kept) AS batch_bytes
      FROM judged
    WINDOW waiting AS (PARTITION BY stream_state_alone = 'ready' AND is_kept ORDER BY due_at, lease_name)
  ), afforded AS MATERIALIZED (
    SELECT counted.*,
           CASE WHEN is_served AND number > 1 AND bytes > c_bytes_max THEN 'waiting' ELSE stream_state_alone END AS stream_state
      FROM counted
  ), decided AS MATERIALIZED (
    SELECT afforded.*,
           is_kept AND (stream_state IN ('ready', 'begun', 'look_again') OR NOT p_free_idle) AS is_held,
           stream_state NOT IN ('begun', 'look_again') AS is_settled
      FROM afforded
  ), served AS MATERIALIZED (
    -- One row per head that the caller gets, and one for each other stream. Nothing is joined with itself later: that would
    -- take the square of the number of streams.
    SELECT d.*, batch.intent_id, coalesce(batch.place, 1) AS place,
           coalesce(p_begin AND batch.intent_id IS NOT NULL AND d.expires_at > v_now AND d.step = 'call'
                    AND NOT d.is_asking, false) AS is_begun_now
      FROM decided d
      LEFT JOIN LATERAL (
        SELECT d.head_id AS intent_id, 1 AS place
         WHERE d.stream_state = 'ready' AND d.is_held AND NOT d.is_asking AND d.batch_max = 1
         UNION ALL
        SELECT several.intent_id, several.place
          FROM (SELECT p.intent_id, p.place,
                       bool_and(p.place = 1 OR p.step = d.step AND p.step <> 'finish' AND p.due_at <= v_now
                                AND p.contract_version = d.contract_version) OVER (ORDER BY p.place)
                       AND (p.place = 1 OR sum(p.content_bytes) OVER (ORDER BY p.place) <= d.batch_bytes) AS is_in_batch
                  FROM (SELECT p.intent_id, p.due_at, p.contract_version, p.content_bytes,
                               row_number() OVER (ORDER BY p.stream_seq) AS place,
                               leasehold.head_action(p.last_state, p.attempt_count, p.deadline_at, v_now) AS step
                          FROM leasehold.outbox_pending p
                         WHERE d.stream_state = 'ready' AND d.is_held AND NOT d.is_asking AND d.batch_max > 1
                           AND p.scope = 'stream' AND p.target = d.target AND p.stream = d.stream
                           AND p.stream_seq >= d.stream_seq
                         ORDER BY p.stream_seq LIMIT greatest(least(d.batch_max, d.room), 1)) AS p) AS several
         WHERE several.is_in_batch
         UNION ALL
        SELECT asked.intent_id, asked.place
          FROM (SELECT p.intent_id, row_number() OVER (ORDER BY p.stream_seq) AS place,
                       sum(p.content_bytes) OVER (ORDER BY p.stream_seq) AS bytes
          FROM (SELECT p.intent_id, p.stream_seq, p.content_bytes FROM leasehold.outbox_pending p
                 WHERE d.stream_state = 'ready' AND d.is_held AND d.is_asking AND p.awaits_confirmation
                   AND p.scope = 'stream' AND p.target = d.target AND p.stream = d.stream
                   AND p.due_at <= v_now AND p.contract_version = d.awaited_version
                 ORDER BY p.stream_seq LIMIT 100) AS p) AS asked
         WHERE asked.place = 1 OR asked.bytes <= d.batch_bytes) AS batch ON true
  ), changing AS MATERIALIZED (
    SELECT c.*
      -- While somebody holds a stream, claimers pass over its head, also if it is marked as claimable.
      FROM (SELECT s.lease_name, s.place, coalesce(s.intent_id, s.next_id) AS intent_id, s.due_at, s.paused_until,
                   s.is_begun_now, s.expires_at > '-infinity' AS was_held,
                   NOT s.is_held AND s.is_settled AND s.paused_until IS DISTINCT FROM 'infinity' AS is_claimable
              FROM served s
             UNION ALL
            -- The head does not lead to the stream while others must be asked about first.
            SELECT s.lease_name, 1, s.head_id, s.due_at, s.paused_until, false, false, false
              FROM served s WHERE s.is_asking AND s.place = 1) AS c
      JOIN leasehold.outbox_pending p ON p.intent_id = c.intent_id
     WHERE c.is_begun_now OR p.is_claimable <> c.is_claimable
        OR c.is_claimable AND (p.due_at < nullif(c.paused_until, 'infinity') OR p.due_at > c.due_at
                               OR c.was_held AND p.due_at < v_now)
  ), ours AS MATERIALIZED (
    SELECT p.intent_id FROM leasehold.outbox_pending p
     WHERE p.intent_id = ANY (ARRAY(SELECT changing.intent_id FROM changing))
       FOR NO KEY UPDATE SKIP LOCKED
  ), others AS MATERIALIZED (
    -- Streams with a row that somebody else has locked, and the first place that they cannot get.
    SELECT changing.lease_name, min(changing.place) AS place FROM changing
     WHERE changing.intent_id NOT IN (SELECT ours.intent_id FROM ours)
     GROUP BY changing.lease_name
  ), answered AS MATERIALIZED (
    SELECT s.lease_name, s.lease_epoch, s.expires_at, s.grace_expires_at, s.target, s.stream, s.paused_until, s.due_at,
           s.place, NOT passed.is_over AND s.is_begun_now AS is_begun_now,
           CASE WHEN NOT passed.is_over THEN s.intent_id END AS intent_id,
           CASE WHEN passed.is_over THEN 'look_again' ELSE s.stream_state END AS stream_state,
           CASE WHEN passed.is_over THEN s.is_kept ELSE s.is_held END AS is_held,
           s.is_settled AND NOT passed.is_over AS is_settled
      FROM served s
      LEFT JOIN others ON others.lease_name = s.lease_name
     -- The holder of a stream with a call in flight comes back to it anyway.
     CROSS JOIN LATERAL (SELECT coalesce(others.place = 1 AND s.stream_state <> 'begun', false) AS is_over) AS passed
     WHERE s.place = 1 OR s.place < coalesce(others.place, s.place + 1)
  ), freed AS (
    UPDATE leasehold.leases l
       SET expires_at = CASE WHEN d.is_settled THEN '-infinity'
                             WHEN l.expires_at = '-infinity' THEN v_now  -- nobody held it
                             ELSE least(l.expires_at, v_now) END,
           grace_expires_at = CASE WHEN d.is_settled THEN '-infinity' ELSE v_now END, lease_seconds = 0, grace_seconds = 0
      FROM answered d WHERE d.place = 1 AND l.lease_name = d.lease_name AND NOT d.is_held
  ), changed AS (
    UPDATE leasehold.outbox_pending p
       SET is_claimable = c.is_claimable,
           due_at = CASE WHEN c.is_claimable THEN greatest(
                           least(p.due_at, c.due_at), CASE WHEN c.was_held OR NOT p.is_claimable THEN v_now END,
                           nullif(c.paused_until, 'infinity'))
                         ELSE p.due_at END,
           begun_at = CASE WHEN c.is_begun_now THEN v_now ELSE p.begun_at END,
           first_tried_at = CASE WHEN c.is_begun_now THEN coalesce(p.first_tried_at, v_now) ELSE p.first_tried_at END
      FROM changing c
     -- Hashed; a join of the two would compare each row with all others.
     WHERE p.intent_id = c.intent_id AND (c.intent_id IN (SELECT ours.intent_id FROM ours)) IS TRUE
       AND NOT EXISTS (SELECT FROM others o WHERE o.lease_name = c.lease_name AND o.place <= c.place)
  )
  SELECT s.lease_name, s.lease_epoch, s.expires_at, s.grace_expires_at, s.target, s.stream, s.stream_state,
         CASE WHEN s.stream_state IN ('waiting', 'paused') THEN extract(epoch FROM
           nullif(CASE s.stream_state WHEN 'paused' THEN s.paused_until ELSE s.due_at END, 'infinity') - v_now
         )::double precision END,
         s.is_held, p.intent_id, p.contract_version, p.attempt_count + 1, p.last_state, p.reference, p.priority,
         i.submission_key, leasehold.fencing_token(p_token_floor, i.token_base, s.lease_epoch, p.attempt_count + 1), i.payload, i.body, i.content_type, i.metadata, i.trace_context,
         i.created_at, p.due_at, p.deadline_at, coalesce(p.first_tried_at, CASE WHEN s.is_begun_now THEN v_now END),
         CASE WHEN s.is_begun_now THEN v_now END, v_now, NULL::text, NULL::text, NULL::text
    FROM answered s
    LEFT JOIN leasehold.outbox_pending p ON p.intent_id = s.intent_id
    LEFT JOIN leasehold.intents i ON i.intent_id = s.intent_id
   ORDER BY s.lease_name, s.place;
END
$$;
REVOKE ALL ON FUNCTION leasehold.next_stream_heads(text[], text[], boolean, boolean, bigint) FROM PUBLIC;
