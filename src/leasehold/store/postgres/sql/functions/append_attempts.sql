-- The only way to the ledger: append one row for each outcome that is applied, and delete or reschedule its pending row.
-- An outcome that only reports a question without news, or a deferred call, is applied without a row. A deferred call had
-- certainly no effect: its mark goes, the intent stays what it was, and the pending row says why and since when.
-- (One exception: redrive_intent writes the first row of a new intent.)
-- p_fence says what an outcome must match to be applied: claim (holder and token of an unexpired claim), lease (the name
-- of the lease that the caller holds), or none (repair and operators, who have locked the row).
-- judge_outcomes decides what each outcome means. Most batches need no decision: every outcome is DISPATCHED or FAILED and of
-- a call, every row is pending under the fence, and every call that had to be begun was begun. Such a batch is applied directly,
-- which saves a sixth of the time: its judgements have no new_state, for the outcomes' own are written. It needs the outcomes in
-- the order of their ids.
-- It knows nothing of streams: their callers continue them with what it returns (pause_failed_streams, advance_streams).
-- Verdicts: applied, lease_lost, superseded, ceiling_reached, already_terminal, not_found.
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
  v_lease_names text[];
  v_is_plain boolean;
  v_judgements leasehold.judgement[];  -- one for each of p_outcomes
BEGIN
  SELECT array_agg(o.intent_id), array_agg(o.lease_token), array_agg(o.lease_name),
         p_fence <> 'none' AND bool_and(o.state IN ('DISPATCHED', 'FAILED') AND o.attempt_no IS NULL)
    INTO v_ids, v_tokens, v_lease_names, v_is_plain
    FROM unnest(p_outcomes) AS o;
  IF v_is_plain THEN
    SELECT array_agg(p.intent_id) = v_ids AND bool_and(p.is_plain)
             AND CASE p_fence WHEN 'lease' THEN array_agg(p.lease_name) = v_lease_names
                              ELSE array_agg(p.lease_token) = v_tokens END,
           array_agg(ROW (p.place, p.begun_at, p.reference, NULL, p.new_attempt_no, NULL, NULL, NULL)::leasehold.judgement)
      INTO v_is_plain, v_judgements
      FROM (SELECT p.intent_id, p.ctid AS place, p.begun_at, p.reference, p.lease_token, p.lease_name,
                   coalesce(written.attempts, 0) + 1 AS new_attempt_no,
                   -- Never NULL, which bool_and would pass over.
                   (p_fence = 'lease'
                    OR p.claimed_by = p_outcomes[1].holder AND p.lease_expires_at > p_now) IS TRUE
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
    v_judgements := leasehold.judge_outcomes(p_outcomes, p_now, p_fence);
  END IF;

  INSERT INTO leasehold.outbox_attempts (
    intent_id, attempt_no, state, reason, holder, lease_token, lease_name, lease_epoch, started_at, finished_at,
    reference, code, detail)
  SELECT o.intent_id, o.new_attempt_no, CASE WHEN v_is_plain THEN o.state ELSE o.new_state END,
         CASE WHEN v_is_plain THEN o.reason ELSE o.new_reason END,
         o.holder, o.lease_token, o.lease_name, o.lease_epoch,
         least(coalesce(o.begun_at, p_now - make_interval(secs => o.elapsed_seconds), p_now), p_now), p_now,
         coalesce(o.reference, o.known_reference), o.code, left(o.detail, 2000)
    FROM ROWS FROM (unnest(p_outcomes), unnest(v_judgements)) AS o
   WHERE v_is_plain OR o.refusal IS NULL AND o.new_state IS NOT NULL;

  -- Pending rows are found by their places, which nobody can change while they are locked.
  DELETE FROM leasehold.outbox_pending p
   WHERE p.ctid = ANY (ARRAY(SELECT j.place FROM unnest(v_judgements) AS j WHERE j.refusal IS NULL AND j.next_due_at IS NULL));
  IF v_is_plain IS NOT TRUE THEN
    UPDATE leasehold.outbox_pending p
       SET attempt_count = CASE WHEN o.new_state IS NULL THEN p.attempt_count ELSE o.new_attempt_no END,
           last_state = coalesce(o.new_state, p.last_state), due_at = o.next_due_at,
           asked_count = CASE WHEN o.new_state IS NULL
                              THEN p.asked_count + (coalesce(p.last_state, '') IN ('IN_DOUBT', 'SUBMITTED')
                                                    AND NOT o.is_deferred)::integer
                              ELSE 0 END,
           awaits_confirmation = (
             coalesce(o.new_state, p.last_state) = 'SUBMITTED' AND p.scope = 'stream' AND o.next_due_at < 'infinity'
             AND (SELECT c.pipeline_max > 1 FROM leasehold.contracts c
                   WHERE c.target = p.target AND c.version = p.contract_version)) IS TRUE,
           reference = coalesce(o.reference, p.reference),
           -- Without a row on the ledger, no call had an effect: the gateway has not seen the key as a call.
           first_tried_at = CASE WHEN o.new_state IS NOT NULL THEN coalesce(p.first_tried_at, p.begun_at, p_now)
                                 WHEN p.last_state IS NOT NULL THEN p.first_tried_at END,
           deferred_since = CASE WHEN o.new_state IS NULL
                                 THEN coalesce(p.deferred_since, CASE WHEN o.is_deferred THEN p_now END) END,
           deferred_reason = CASE WHEN o.is_deferred THEN o.reason WHEN o.new_state IS NULL THEN p.deferred_reason END,
           deferred_code = CASE WHEN o.is_deferred THEN o.code WHEN o.new_state IS NULL THEN p.deferred_code END,
           deferred_detail = CASE WHEN o.is_deferred THEN left(o.detail, 500)
                                  WHEN o.new_state IS NULL THEN p.deferred_detail END,
           begun_at = NULL, begun_epoch = NULL, claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           lease_seconds = NULL, last_modified_at = greatest(p_now, p.last_modified_at + interval '1 microsecond')
      FROM (SELECT given.*, given.new_state IS NULL AND given.state = 'DEFERRED' AND given.reason IS NOT NULL AS is_deferred
              FROM ROWS FROM (unnest(p_outcomes), unnest(v_judgements)) AS given) AS o
     WHERE p.ctid = o.place AND o.refusal IS NULL AND o.next_due_at IS NOT NULL;
  END IF;

  RETURN QUERY
  SELECT o.intent_id, coalesce(o.refusal, 'applied'), applied.*
    FROM ROWS FROM (unnest(p_outcomes), unnest(v_judgements)) AS o
    LEFT JOIN LATERAL (
      -- Without a new row on the ledger: the number of the last one.
      SELECT CASE WHEN v_is_plain OR o.new_state IS NOT NULL THEN o.new_attempt_no ELSE o.new_attempt_no - 1 END,
             coalesce(o.new_state, nullif(o.state, 'DEFERRED')), CASE WHEN v_is_plain THEN o.reason ELSE o.new_reason END,
             o.next_due_at) AS applied
      ON o.refusal IS NULL;
END
$$;
REVOKE ALL ON FUNCTION leasehold.append_attempts(leasehold.outcome[], timestamptz, text) FROM PUBLIC;
