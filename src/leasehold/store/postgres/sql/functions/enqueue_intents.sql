-- Accept intents. p_intents is a JSON array of 1 to 10,000 objects with these fields:
--   target; payload (any JSON but null), or body (base64) with content_type; and optionally
--   idempotency_key with key_scope (target, or all: the key is unique across all targets),
--   stream, priority (0 first to 3 last), due_at or delay_seconds, deadline_at or deadline_seconds,
--   metadata, trace_context.
-- Returns one verdict per entry, in the order of the array. Only accepted entries are written.
-- Verdicts: accepted; duplicate (same key, same payload and same stream; returns the id of the first intent); conflict
-- (same key, but another payload, stream or target: problem says which of them; enqueue_intent raises P7005 instead);
-- unknown_target; too_large (the payload's text or the body has more than 1 MiB); invalid (problem says why).
-- Locks: the rows of the streams that it writes to, then the new keys, each in sorted order.
-- Raises: 22023 if p_intents is not such an array.
CREATE OR REPLACE FUNCTION leasehold.enqueue_intents(p_intents jsonb)
RETURNS TABLE (ordinal integer, verdict text, intent_id uuid, problem text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_transaction_id xid8 := pg_current_xact_id();  -- before the clock is read, as in enqueue_one
  v_one record;
  v_batch_id text;
  v_now timestamptz;
  v_contracts leasehold.contracts[];
  v_scopes text[];
  v_numbers bigint[];
  v_idle_leases text[];
BEGIN
  IF p_intents IS NULL OR jsonb_typeof(p_intents) <> 'array' THEN
    RAISE EXCEPTION 'p_intents is %, but must be a JSON array of objects',
      coalesce(jsonb_typeof(p_intents), 'NULL') USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_between('the number of intents', jsonb_array_length(p_intents), 1, 10000);

  IF jsonb_array_length(p_intents) = 1 THEN
    v_one := leasehold.enqueue_one(jsonb_populate_record(NULL::leasehold.new_intent, p_intents -> 0));
    IF v_one.verdict IS NOT NULL THEN
      RETURN QUERY VALUES (1, v_one.verdict, v_one.intent_id, v_one.problem);
      RETURN;
    END IF;
  END IF;

  SELECT array_agg(current.contract), array_agg((current.contract).scope) INTO v_contracts, v_scopes
    FROM (SELECT DISTINCT entry ->> 'target' AS target FROM jsonb_array_elements(p_intents) AS entry) AS asked
   CROSS JOIN LATERAL (SELECT c AS contract FROM leasehold.contracts c
                        WHERE c.target = asked.target ORDER BY c.version DESC LIMIT 1) AS current;
  IF 'stream' = ANY (v_scopes) THEN
    SELECT * INTO v_numbers, v_idle_leases FROM leasehold.assign_stream_numbers(p_intents, v_contracts);
  END IF;
  IF 'cluster' = ANY (v_scopes) THEN
    v_now := leasehold.announce_change();
  ELSE
    v_now := clock_timestamp();
  END IF;
  -- The id is drawn after the locks, because list_intents searches by the time in the ids.
  v_batch_id := leasehold.new_intent_id();

  RETURN QUERY
  WITH entry AS MATERIALIZED (
    SELECT * FROM leasehold.read_intents(p_intents, v_contracts, v_batch_id, v_now)
  ), keyless AS (
    -- Without a key there is no conflict to check, which makes a large batch 10 percent faster.
    INSERT INTO leasehold.intents (
      intent_id, target, contract_version, stream, stream_seq, submission_key, payload, body, content_type, metadata,
      trace_context, created_at, deadline_at)
    SELECT intent_id, target, contract_version, stream, v_numbers[ordinal], intent_id, payload, body, content_type,
           metadata, trace_context, v_now, deadline_at
      FROM entry WHERE problem IS NULL AND idempotency_key IS NULL
    RETURNING intent_id
  ), keyed AS (
    INSERT INTO leasehold.intents (
      intent_id, target, contract_version, stream, stream_seq, idempotency_key, is_key_of_all_targets, submission_key,
      payload, body, content_type, payload_hash, metadata, trace_context, created_at, deadline_at)
    SELECT intent_id, target, contract_version, stream, v_numbers[ordinal], idempotency_key, is_key_of_all_targets,
           intent_id, payload, body, content_type, payload_hash, metadata, trace_context, v_now, deadline_at
      FROM entry WHERE problem IS NULL AND idempotency_key IS NOT NULL
     -- Keys come first in the order, so that keys of one target and keys of all targets are locked in the same order.
     ORDER BY idempotency_key, target, ordinal
        ON CONFLICT DO NOTHING
    RETURNING intent_id
  ), inserted AS (
    SELECT intent_id FROM keyless UNION ALL SELECT intent_id FROM keyed
  ), pending AS (
    INSERT INTO leasehold.outbox_pending (
      intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, content_bytes, due_at,
      deadline_at, last_modified_at, is_claimable)
    SELECT intent_id, scope, target, contract_version, lease_name, stream, v_numbers[ordinal], priority,
           content_bytes + leasehold.json_text_bytes(metadata), due_at, deadline_at, v_now,
           -- The first new row of an idle stream. The subquery runs only if there is such a stream.
           coalesce(cardinality(v_idle_leases), 0) > 0 AND scope = 'stream' AND ordinal IN (
             SELECT min(head.ordinal) FROM entry AS head JOIN inserted USING (intent_id)
              WHERE head.lease_name = ANY (v_idle_leases) GROUP BY head.lease_name)
      FROM entry JOIN inserted USING (intent_id)
  ), judged AS MATERIALIZED (
    SELECT ordinal, intent_id, target, payload_hash, stream, problem, body IS NOT NULL AS is_body, content_bytes,
           inserted.intent_id IS NOT NULL AS is_new,
           CASE WHEN inserted.intent_id IS NULL AND payload_hash IS NOT NULL
                THEN leasehold.first_intent_of_key(target, idempotency_key, is_key_of_all_targets) END AS first
      FROM entry LEFT JOIN inserted USING (intent_id)
  ), compared AS (
    SELECT ordinal, intent_id, target, problem, is_body, content_bytes, is_new, (first).intent_id AS first_id,
           CASE WHEN NOT is_new THEN leasehold.key_difference(first, target, payload_hash, stream) END AS difference
      FROM judged
  ), answered AS (
    SELECT ordinal, intent_id, target, problem, is_body, content_bytes, first_id, difference,
           leasehold.enqueue_verdict(is_new, first_id IS NOT NULL AND difference IS NULL, problem) AS verdict
      FROM compared
  )
  SELECT ordinal, verdict,
         CASE verdict WHEN 'accepted' THEN intent_id WHEN 'duplicate' THEN first_id WHEN 'conflict' THEN first_id END,
         leasehold.enqueue_problem(verdict, target, is_body, content_bytes, difference, problem)
    FROM answered ORDER BY ordinal;
END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_intents(jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.enqueue_intents(jsonb) TO leasehold_ingest;
