-- The only way to the ledger: append one row for each outcome that is applied, and delete or reschedule its pending row.
-- (One exception: redrive_intent writes the first row of a new intent.)
-- p_fence says what an outcome must match to be applied: claim (holder and token of an unexpired claim), lease (the name
-- of the lease that the caller holds), or none (repair and operators, who have locked the row).
-- judge_outcomes decides what each outcome means. Most batches need no decision: every outcome is DISPATCHED or FAILED,
-- every row is pending under the fence, and every call that had to be begun was begun. Such a batch is applied directly,
-- which saves a sixth of the time. It needs the outcomes in the order of their ids.
-- Verdicts: applied, lease_lost, ceiling_reached, already_terminal, not_found.
-- Locks nothing: callers have locked the pending rows and have read the clock after that (p_now).
-- Raises: P7003 if a reported call had to be begun and was not; 23505 if an intent would end twice.
CREATE OR REPLACE FUNCTION leasehold.append_attempts(
  p_outcomes leasehold.outcome[], p_now timestamptz, p_fence text
) RETURNS TABLE (
  intent_id uuid, verdict text, attempt_no integer, state text, reason text, due_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[];
  v_tokens uuid[];
  v_is_plain boolean;
  -- One entry for each of p_outcomes; see judge_outcomes.
  v_places tid[];
  v_begun_at timestamptz[];
  v_references text[];
  v_numbers integer[];
  v_refusals text[];
  v_exhausted_by text[];
  v_due_at timestamptz[];
BEGIN
  SELECT array_agg(o.intent_id), array_agg(o.lease_token),
         p_fence <> 'none' AND bool_and(o.state IN ('DISPATCHED', 'FAILED'))
    INTO v_ids, v_tokens, v_is_plain
    FROM unnest(p_outcomes) AS o;
  IF v_is_plain THEN
    SELECT array_agg(p.intent_id) = v_ids AND bool_and(p.is_plain)
             AND (p_fence = 'lease' OR array_agg(p.lease_token) = v_tokens),
           array_agg(p.place), array_agg(p.begun_at), array_agg(p.reference), array_agg(p.attempt_no)
      INTO v_is_plain, v_places, v_begun_at, v_references, v_numbers
      FROM (SELECT p.intent_id, p.ctid AS place, p.begun_at, p.reference, p.lease_token,
                   coalesce(written.attempts, 0) + 1 AS attempt_no,
                   -- Never NULL, which bool_and would pass over.
                   (CASE p_fence WHEN 'claim' THEN p.claimed_by = p_outcomes[1].holder AND p.lease_expires_at > p_now
                                 WHEN 'lease' THEN p.lease_name = p_outcomes[1].lease_name END) IS TRUE
                   AND NOT leasehold.is_unbegun_call(p.begun_at, p.last_state, p.scope, c.guarantee, 'DISPATCHED')
                   AS is_plain
              FROM leasehold.outbox_pending p
              JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
              LEFT JOIN (
                -- The bounds repeat the list, but exclude the partitions of other months.
                SELECT a.intent_id, max(a.attempt_no) AS attempts FROM leasehold.outbox_attempts a
                 WHERE a.intent_id = ANY (v_ids) AND a.intent_id BETWEEN v_ids[1] AND v_ids[cardinality(v_ids)]
                 GROUP BY a.intent_id) AS written ON written.intent_id = p.intent_id
             WHERE p.intent_id = ANY (v_ids)
             ORDER BY p.intent_id) AS p;
  END IF;
  IF v_is_plain IS NOT TRUE THEN
    SELECT * INTO v_places, v_begun_at, v_references, v_numbers, v_refusals, v_exhausted_by, v_due_at
      FROM leasehold.judge_outcomes(p_outcomes, p_now, p_fence);
  END IF;

  INSERT INTO leasehold.outbox_attempts (
    intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at, finished_at,
    reference, code, detail)
  SELECT o.intent_id, o.attempt_no, CASE WHEN o.exhausted_by IS NULL THEN o.state ELSE 'FAILED' END,
         coalesce(o.exhausted_by, o.reason), o.holder, o.lease_token, o.lease_name, o.lease_epoch,
         least(coalesce(o.begun_at, p_now - make_interval(secs => o.elapsed_seconds), p_now), p_now), p_now,
         coalesce(o.reference, o.known_reference), o.code, left(o.detail, 2000)
    FROM ROWS FROM (
           unnest(p_outcomes), unnest(v_numbers), unnest(v_begun_at), unnest(v_references), unnest(v_refusals),
           unnest(v_exhausted_by)) AS o (
           intent_id, state, holder, reason, lease_token, lease_name, lease_epoch, reference, code, detail,
           retry_after_seconds, elapsed_seconds, attempt_no, begun_at, known_reference, refusal, exhausted_by)
   WHERE o.refusal IS NULL;

  -- Pending rows are found by their places, which nobody can change while they are locked.
  DELETE FROM leasehold.outbox_pending p
   WHERE p.ctid = ANY (CASE WHEN v_is_plain THEN v_places ELSE ARRAY(
     SELECT o.place FROM unnest(v_places, v_refusals, v_due_at) AS o (place, refusal, due_at)
      WHERE o.refusal IS NULL AND o.due_at IS NULL) END);
  IF v_is_plain IS NOT TRUE THEN
    UPDATE leasehold.outbox_pending p
       SET attempt_count = o.attempt_no, last_state = o.state, due_at = o.next_due_at,
           reference = coalesce(o.reference, p.reference),
           first_tried_at = coalesce(p.first_tried_at, p.begun_at, p_now),
           begun_at = NULL, begun_epoch = NULL, claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           lease_seconds = NULL, last_modified_at = greatest(p_now, p.last_modified_at + interval '1 microsecond')
      FROM ROWS FROM (
             unnest(p_outcomes), unnest(v_places), unnest(v_numbers), unnest(v_refusals), unnest(v_due_at)) AS o (
             intent_id, state, holder, reason, lease_token, lease_name, lease_epoch, reference, code, detail,
             retry_after_seconds, elapsed_seconds, place, attempt_no, refusal, next_due_at)
     WHERE p.ctid = o.place AND o.refusal IS NULL AND o.next_due_at IS NOT NULL;
  END IF;

  RETURN QUERY
  SELECT o.intent_id, coalesce(o.refusal, 'applied'), applied.*
    FROM ROWS FROM (
           unnest(p_outcomes), unnest(v_numbers), unnest(v_refusals), unnest(v_exhausted_by), unnest(v_due_at)) AS o (
           intent_id, state, holder, reason, lease_token, lease_name, lease_epoch, reference, code, detail,
           retry_after_seconds, elapsed_seconds, attempt_no, refusal, exhausted_by, next_due_at)
    LEFT JOIN LATERAL (
      SELECT o.attempt_no, CASE WHEN o.exhausted_by IS NULL THEN o.state ELSE 'FAILED' END,
             coalesce(o.exhausted_by, o.reason), o.next_due_at) AS applied ON o.refusal IS NULL;
END
$$;
REVOKE ALL ON FUNCTION leasehold.append_attempts(leasehold.outcome[], timestamptz, text) FROM PUBLIC;
