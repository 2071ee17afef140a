-- Write the durable "about to call" mark for items under a cluster lease, and return their content.
-- The caller may call the gateway for the items with the verdict begun, and for no others.
-- Verdicts: begun, already_begun, not_due, ceiling_reached, locked (another transaction has the row: try again later),
-- already_terminal, not_found (also if this lease does not cover the item). For streams see begin_stream_attempts.
-- Locks: the lease row FOR KEY SHARE, then the pending rows by id, SKIP LOCKED, so that one row that is locked for long
-- holds up no other call. Reads the clock after that.
-- Raises: P7002 if the lease is lost or past its first expiry, P7006, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.begin_leased_attempts(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[]
) RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, begun_at timestamptz, submission_key uuid,
  fencing_token bigint, payload jsonb, body bytea, content_type text, metadata jsonb, trace_context text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz;
  v_token_floor bigint;
  v_ours uuid[];
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  v_token_floor := leasehold.require_generation();
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);
  SELECT coalesce(array_agg(ours.intent_id), '{}') INTO v_ours
    FROM (SELECT p.intent_id FROM leasehold.outbox_pending p
           WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE SKIP LOCKED) AS ours;
  v_now := leasehold.announce_change();
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => false);

  RETURN QUERY
  WITH judged AS MATERIALIZED (
    SELECT asked.intent_id, CASE
             WHEN p.intent_id IS NULL THEN leasehold.missing_verdict(asked.intent_id)
             WHEN p.lease_name IS DISTINCT FROM p_lease_name OR p.scope <> 'cluster' THEN 'not_found'
             WHEN p.intent_id <> ALL (v_ours) THEN 'locked'
             WHEN p.begun_at IS NOT NULL THEN 'already_begun'
             WHEN p.attempt_count >= 20 THEN 'ceiling_reached'
             WHEN p.due_at > v_now THEN 'not_due'
             ELSE 'begun' END AS verdict
      FROM unnest(p_intent_ids) AS asked (intent_id)
      LEFT JOIN leasehold.outbox_pending p ON p.intent_id = asked.intent_id
  ), begun AS (
    UPDATE leasehold.outbox_pending p
       SET begun_at = v_now, begun_epoch = p_lease_epoch,
           first_tried_at = coalesce(p.first_tried_at, v_now),
           last_modified_at = greatest(v_now, p.last_modified_at + interval '1 microsecond')
      FROM judged WHERE p.intent_id = judged.intent_id AND judged.verdict = 'begun'
    RETURNING p.intent_id, p.attempt_count
  )
  SELECT judged.intent_id, judged.verdict, begun.attempt_count + 1,
         CASE WHEN judged.verdict = 'begun' THEN v_now END, i.submission_key,
         leasehold.fencing_token(v_token_floor, i.token_base, p_lease_epoch, begun.attempt_count + 1), i.payload, i.body,
         i.content_type, i.metadata, i.trace_context
    FROM judged
    LEFT JOIN begun ON begun.intent_id = judged.intent_id
    LEFT JOIN leasehold.intents i ON i.intent_id = begun.intent_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_leased_attempts(text, text, bigint, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_leased_attempts(text, text, bigint, uuid[]) TO leasehold_executor;
