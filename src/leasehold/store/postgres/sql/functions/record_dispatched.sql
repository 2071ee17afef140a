-- Record under a cluster or stream lease that calls had their effect: what record_attempts does with DISPATCHED
-- results, in arrays, which cost half of what the same results cost as JSON. For each intent how long its call
-- took, and what the gateway said: those three may be NULL where it said nothing of any. Returns only what was not
-- applied, as record_attempts does. Give the ids in their order: then, and where all of them are pending
-- under this lease, nothing is judged one by one.
-- Locks: the lease row FOR KEY SHARE, then the pending rows by id; looks at the clock after each.
-- Raises: P7002 when the lease is lost, P7003 and 22023 as record_attempts; then nothing is written.
CREATE OR REPLACE FUNCTION leasehold.record_dispatched(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[], p_elapsed_seconds double precision[],
  p_references text[] DEFAULT NULL, p_codes text[] DEFAULT NULL, p_details text[] DEFAULT NULL
) RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[];
  v_places tid[];
  v_begun_at timestamptz[];
  v_known_references text[];
  v_is_plain boolean;
  v_now timestamptz;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  IF cardinality(p_elapsed_seconds) IS DISTINCT FROM cardinality(p_intent_ids)
     OR array_position(p_elapsed_seconds, NULL) IS NOT NULL
     OR 0 > ANY (p_elapsed_seconds) OR 604800 < ANY (p_elapsed_seconds) THEN
    RAISE EXCEPTION 'p_elapsed_seconds must have a number from 0 to 604800 (7 days) for each of the % intents',
      cardinality(p_intent_ids) USING ERRCODE = '22023';
  ELSIF cardinality(p_references) <> cardinality(p_intent_ids) OR cardinality(p_codes) <> cardinality(p_intent_ids)
     OR cardinality(p_details) <> cardinality(p_intent_ids) THEN
    RAISE EXCEPTION 'p_references, p_codes and p_details must be NULL or have one entry for each of the % intents',
      cardinality(p_intent_ids) USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM unnest(p_references, p_codes) AS told (reference, code)
                 WHERE length(reference) > 255 OR length(code) > 64) THEN
    RAISE EXCEPTION 'a reference is limited to 255 characters, a code to 64' USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  SELECT array_agg(held.intent_id), array_agg(held.place), array_agg(held.begun_at), array_agg(held.reference),
         bool_and(held.is_plain)
    INTO v_ids, v_places, v_begun_at, v_known_references, v_is_plain
    FROM (SELECT p.intent_id, p.ctid AS place, p.begun_at, p.reference,
                 p.lease_name IS NOT DISTINCT FROM p_lease_name AND NOT leasehold.is_unbegun_call(
                   p.begun_at, p.last_state, p.scope, c.guarantee, 'DISPATCHED') AS is_plain
            FROM leasehold.outbox_pending p
            JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
           WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR UPDATE OF p) AS held;
  v_now := clock_timestamp();
  -- The rows may have been waited for: the lease must still stand after the wait.
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);

  IF v_is_plain AND v_ids = p_intent_ids THEN
    WITH written AS MATERIALIZED (
      -- The bounds say the same as the list, but by them the partitions of other months are left out.
      SELECT a.intent_id, max(a.attempt_no) AS attempts
        FROM leasehold.outbox_attempts a
       WHERE a.intent_id = ANY (v_ids) AND a.intent_id BETWEEN v_ids[1] AND v_ids[cardinality(v_ids)]
       GROUP BY a.intent_id
    )
    INSERT INTO leasehold.outbox_attempts (
      intent_id, attempt_no, state, holder, lease_name, lease_epoch, started_at, finished_at, reference, code, detail)
    SELECT told.intent_id, coalesce(written.attempts, 0) + 1, 'DISPATCHED', p_holder_id, p_lease_name, p_lease_epoch,
           least(coalesce(told.begun_at, v_now - make_interval(secs => told.elapsed_seconds)), v_now), v_now,
           coalesce(told.reference, told.known_reference), told.code, left(told.detail, 2000)
      FROM unnest(v_ids, v_begun_at, v_known_references, p_elapsed_seconds, p_references, p_codes, p_details)
        AS told (intent_id, begun_at, known_reference, elapsed_seconds, reference, code, detail)
      LEFT JOIN written ON written.intent_id = told.intent_id;
    DELETE FROM leasehold.outbox_pending p WHERE p.ctid = ANY (v_places);
    RETURN;
  END IF;
  RETURN QUERY
  SELECT * FROM leasehold.append_attempts(ARRAY(
    SELECT ROW (told.intent_id, 'DISPATCHED', p_holder_id, NULL, NULL, p_lease_name, p_lease_epoch, told.reference,
                told.code, told.detail, NULL, told.elapsed_seconds)::leasehold.outcome
      FROM unnest(p_intent_ids, p_elapsed_seconds, p_references, p_codes, p_details)
        AS told (intent_id, elapsed_seconds, reference, code, detail)
     ORDER BY told.intent_id), v_now, 'lease') AS judged
   WHERE judged.verdict <> 'applied';
END
$$;
REVOKE ALL ON FUNCTION leasehold.record_dispatched(
  text, text, bigint, uuid[], double precision[], text[], text[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.record_dispatched(
  text, text, bigint, uuid[], double precision[], text[], text[], text[]) TO leasehold_executor;
