-- Lease up to p_batch_size due items of these targets to a worker, each under a fresh token.
-- Every target has a share of the batch, and the other targets get what one does not use (share_batch). p_target_limits bounds
-- the part of each target (its free slots).
-- The contents of all items have at most p_bytes_max bytes together; one item is handed out however large it is. So a few
-- large payloads never make a claim so slow that it fails for all, and leave room to other targets.
-- Each target is walked by (priority, due time) on its own, so the backlog of other targets costs nothing.
-- p_due_from says where each walk starts, four entries (one per priority) for each target in turn: the caller gives
-- the due time up to which it has claimed, less a tolerance. So a claim does not pass over the dead rows of everything
-- that was claimed since the last vacuum. Rows that become visible below that time are found by going back to when their
-- transaction began (read_open_transactions). What somebody had locked for longer is found by a full walk: leave
-- p_due_from out now and then. A full walk also ends claims that expired before their call was begun; they are due in
-- one second.
-- Locks: the claimed rows, SKIP LOCKED, so it never waits. Raises: P7006, 22023.
CREATE OR REPLACE FUNCTION leasehold.claim_outbox_batch(
  p_batch_size integer, p_worker_id text, p_lease_seconds double precision, p_targets text[],
  p_target_limits integer[] DEFAULT NULL, p_due_from timestamptz[] DEFAULT NULL, p_bytes_max integer DEFAULT 8388608
) RETURNS TABLE (
  intent_id uuid, target text, contract_version integer, attempt_no integer, last_state text,
  reference text, priority smallint, submission_key uuid, fencing_token bigint, payload jsonb, body bytea, content_type text,
  metadata jsonb, trace_context text, stream text, created_at timestamptz, due_at timestamptz,
  deadline_at timestamptz, first_tried_at timestamptz, claimed_at timestamptz, lease_token uuid,
  lease_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_due_from timestamptz[] := p_due_from;
  -- Randomness is drawn once: on a server without OpenSSL, each draw opens a device.
  v_secret bytea := uuid_send(gen_random_uuid());
  v_first_seat integer := floor(random() * cardinality(p_targets));
  v_left integer := p_batch_size;
  v_token_floor bigint;
  v_places tid[];
  v_sizes integer[];
  v_seats integer[];
  v_bytes bigint;
  v_bytes_left bigint := p_bytes_max;
  v_fitting integer[];
BEGIN
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 10000);
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 3600);
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  PERFORM leasehold.require_between('p_bytes_max', p_bytes_max, 1, 1073741824);
  PERFORM leasehold.require_walk(p_targets, p_target_limits, p_due_from);
  v_token_floor := leasehold.require_generation();

  IF p_due_from IS NULL THEN
    v_due_from := leasehold.requeue_expired_claims(p_batch_size, p_targets, v_now);
  END IF;
  FOR v_pass IN 1..2 LOOP
    WITH picked AS MATERIALIZED (
      SELECT due.place, due.content_bytes, shared.seat
        FROM leasehold.share_batch(p_batch_size, p_targets, p_target_limits, v_first_seat, v_pass) AS shared
       CROSS JOIN LATERAL (
         SELECT level_due.place, level_due.content_bytes
           FROM generate_series(0, 3) AS level
          CROSS JOIN LATERAL (
            SELECT p.ctid AS place, p.content_bytes FROM leasehold.outbox_pending p
             WHERE p.scope = 'item' AND p.target = shared.target AND p.priority = level::smallint
               AND p.due_at >= v_due_from[(shared.place - 1) * 4 + level + 1]
               AND p.due_at <= v_now AND p.claimed_by IS NULL
             ORDER BY p.due_at, p.intent_id
             LIMIT shared.rows_max
               FOR UPDATE SKIP LOCKED) AS level_due
          LIMIT shared.rows_max) AS due
       LIMIT v_left
    )
    SELECT coalesce(array_agg(place), '{}'), array_agg(content_bytes), array_agg(seat), coalesce(sum(content_bytes), 0)
      INTO v_places, v_sizes, v_seats, v_bytes FROM picked;
    IF v_bytes > v_bytes_left THEN
      v_fitting := leasehold.rows_within_budget(
        v_sizes, v_seats, v_bytes_left, p_least => CASE v_left WHEN p_batch_size THEN 1 ELSE 0 END);
      v_places := ARRAY(SELECT v_places[fitting] FROM unnest(v_fitting) AS fitting);
    END IF;
    IF cardinality(v_places) > 0 THEN
      RETURN QUERY
      WITH claimed AS (
        -- No column of an index changes, so the update is heap-only.
        UPDATE leasehold.outbox_pending p
           SET claimed_by = p_worker_id,
               lease_token = encode(substr(sha256(v_secret || uuid_send(p.intent_id)), 1, 16), 'hex')::uuid,
               lease_expires_at = v_now + make_interval(secs => p_lease_seconds), lease_seconds = p_lease_seconds,
               first_tried_at = coalesce(p.first_tried_at, v_now)
         WHERE p.ctid = ANY (v_places)
        RETURNING p.*
      )
      SELECT c.intent_id, c.target, c.contract_version, c.attempt_count + 1, c.last_state, c.reference,
             c.priority, i.submission_key, leasehold.fencing_token(v_token_floor, i.token_base, 0, c.attempt_count + 1),
             i.payload, i.body, i.content_type, i.metadata, i.trace_context, c.stream, i.created_at, c.due_at, c.deadline_at,
             c.first_tried_at, v_now, c.lease_token, c.lease_expires_at
        FROM claimed c JOIN leasehold.intents i ON i.intent_id = c.intent_id;
    END IF;
    v_left := v_left - cardinality(v_places);
    EXIT WHEN v_left = 0 OR v_bytes > v_bytes_left;
    v_bytes_left := v_bytes_left - v_bytes;
    -- A target with more than its share has used up at least its share.
    EXIT WHEN cardinality(v_places) < p_batch_size / greatest(cardinality(p_targets), 1);
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.claim_outbox_batch(integer, text, double precision, text[], integer[], timestamptz[], integer)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.claim_outbox_batch(integer, text, double precision, text[], integer[], timestamptz[], integer)
  TO leasehold_executor;
