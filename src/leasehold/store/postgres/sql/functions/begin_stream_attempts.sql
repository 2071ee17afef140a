-- Write the durable "about to call" mark for heads of streams that this holder has, in one statement for many streams.
-- The caller may call the gateway for the items with the verdict begun, and for no others. Items of one stream
-- that begin in one call are one ordered batch.
-- Verdicts: begun, already_begun, not_due, paused, ceiling_reached, locked (another transaction has the row: try again
-- later), already_terminal, lease_lost (also after the first expiry),
-- not_found (also if none of these leases covers the item), out_of_order (a call of the stream is in flight; an earlier item is
-- unfinished, does not await its confirmation in a pipeline and does not begin in this call; the batch is longer than batch_max,
-- is interrupted or has several contracts; more than pipeline_max items would await their confirmation; this one does already).
-- Locks: the lease rows FOR KEY SHARE, by name; then the pending rows by id, SKIP LOCKED. Reads the clock after each.
-- Raises: P7006; 22023 for bad arguments, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.begin_stream_attempts(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_intent_ids uuid[]
) RETURNS TABLE (intent_id uuid, verdict text, attempt_no integer, begun_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_held text[];
  v_ours uuid[];
  v_now timestamptz;
  v_pipelined text[];
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  PERFORM leasehold.require_generation();
  v_held := leasehold.lock_held_streams(p_holder_id, p_lease_names, p_lease_epochs, p_to_begin => true);
  SELECT coalesce(array_agg(ours.intent_id), '{}') INTO v_ours
    FROM (SELECT p.intent_id FROM leasehold.outbox_pending p
           WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE SKIP LOCKED) AS ours;
  v_now := clock_timestamp();
  v_pipelined := ARRAY(SELECT DISTINCT c.target FROM leasehold.contracts c WHERE c.pipeline_max > 1);

  RETURN QUERY
  WITH judged AS MATERIALIZED (
    SELECT asked.intent_id, CASE
             WHEN p.intent_id IS NULL THEN leasehold.missing_verdict(asked.intent_id)
             WHEN l.lease_name IS NULL OR p.scope <> 'stream' THEN 'not_found'
             -- Check the expiry again, because this session may have waited for the rows.
             WHEN l.lease_name <> ALL (v_held) OR l.expires_at <= v_now THEN 'lease_lost'
             WHEN p.intent_id NOT IN (SELECT unnest(v_ours)) THEN 'locked'
             WHEN p.begun_at IS NOT NULL THEN 'already_begun'
             WHEN p.attempt_count >= 20 THEN 'ceiling_reached'
             WHEN l.paused_until > v_now THEN 'paused'
             WHEN p.due_at > v_now THEN 'not_due'
             WHEN p.awaits_confirmation
               OR leasehold.is_stream_begun(p.target, p.stream, CASE WHEN p.target = ANY (v_pipelined) THEN 200 ELSE c.batch_max END)
               OR EXISTS (
                 SELECT FROM leasehold.outbox_pending earlier
                  WHERE earlier.scope = 'stream' AND earlier.target = p.target AND earlier.stream = p.stream
                    AND earlier.stream_seq >= head.stream_seq AND earlier.stream_seq < p.stream_seq
                    AND (earlier.due_at > v_now OR earlier.attempt_count >= 20 OR earlier.awaits_confirmation
                         OR earlier.contract_version <> p.contract_version
                         OR earlier.intent_id <> ALL (v_ours)))
               OR batch.rows > least(c.batch_max, CASE
                 -- It was counted when it was called first.
                 WHEN p.last_state IN ('IN_DOUBT', 'SUBMITTED') THEN c.batch_max
                 WHEN c.pipeline_max = 1 AND awaited.rows = 0 THEN c.batch_max
                 ELSE c.pipeline_max - awaited.rows END)
               THEN 'out_of_order'
             ELSE 'begun' END AS verdict
      FROM unnest(p_intent_ids) AS asked (intent_id)
      LEFT JOIN leasehold.outbox_pending p ON p.intent_id = asked.intent_id
      LEFT JOIN leasehold.leases l ON l.lease_name = p.lease_name AND l.lease_name = ANY (p_lease_names)
      LEFT JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
      LEFT JOIN LATERAL (
        SELECT first.stream_seq FROM leasehold.outbox_pending first
         WHERE first.scope = 'stream' AND first.target = p.target AND first.stream = p.stream AND NOT first.awaits_confirmation
         ORDER BY first.stream_seq LIMIT 1) AS head ON true
     CROSS JOIN LATERAL (
       SELECT count(*) AS rows FROM (
         SELECT FROM leasehold.outbox_pending one
          WHERE one.scope = 'stream' AND one.target = p.target AND one.stream = p.stream
            AND one.stream_seq BETWEEN head.stream_seq AND p.stream_seq LIMIT 101) AS one) AS batch
     CROSS JOIN LATERAL (
       SELECT count(*) AS rows FROM leasehold.outbox_pending one
        WHERE one.scope = 'stream' AND one.target = p.target AND one.stream = p.stream AND one.awaits_confirmation) AS awaited
  ), begun AS (
    -- No column of an index changes, so the update is heap-only.
    UPDATE leasehold.outbox_pending p SET begun_at = v_now, first_tried_at = coalesce(p.first_tried_at, v_now)
      FROM judged WHERE p.intent_id = judged.intent_id AND judged.verdict = 'begun'
    RETURNING p.intent_id, p.attempt_count
  )
  SELECT judged.intent_id, judged.verdict, begun.attempt_count + 1, CASE WHEN judged.verdict = 'begun' THEN v_now END
    FROM judged LEFT JOIN begun ON begun.intent_id = judged.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_stream_attempts(text, text[], bigint[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_stream_attempts(text, text[], bigint[], uuid[]) TO leasehold_executor;
