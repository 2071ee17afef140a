-- The next step of a restore (begin_restored_generation): look at the next p_batch_size unfinished intents, and put those in
-- doubt that the lost database may have sent, with the reason database_restored (may_be_sent_unseen). lookup is asked about
-- after its quarantine; blind is held for a person; keyed with a window is treated as if the window were over: asked about, or
-- held if the gateway cannot be asked. keyed without a window and fenced are sent again under a higher token, and the gateway
-- ignores the key. So they are left alone, unless they have a deadline: it does not end an intent in doubt, which is sent again
-- to learn its outcome.
-- Returns how many it looked at, how many of them it put in doubt, how many the restore has so far, and whether it is done.
-- After the last step leases are granted again. Without a restore to repair, it does nothing and is done.
-- Locks: the first row of generations FOR UPDATE, so there is one step at a time; the leases of the streams FOR NO KEY
-- UPDATE, by name; the pending rows by id. Reads the clock after that.
-- Raises: 22023, also if the database is another one than the one that was restored; 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.repair_restored_intents(p_batch_size integer)
RETURNS TABLE (looked_at integer, put_in_doubt integer, in_doubt_so_far bigint, is_done boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  c_first_id CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
  v_current leasehold.generations;
  v_ids uuid[];
  v_streams text[];
  v_now timestamptz := clock_timestamp();
  v_outcomes leasehold.outcome[];
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 10000);
  PERFORM FROM leasehold.generations g WHERE g.generation_no = 1 FOR UPDATE;
  SELECT * INTO v_current FROM leasehold.generations g ORDER BY g.generation_no DESC LIMIT 1;
  is_done := v_current.ready_at IS NOT NULL;
  looked_at := 0;
  put_in_doubt := 0;
  in_doubt_so_far := v_current.intents_in_doubt;
  IF is_done THEN
    RETURN NEXT;
    RETURN;
  ELSIF v_current.database_identity <> leasehold.read_database_identity() THEN
    RAISE EXCEPTION 'the database was restored once more: begin a restored generation first' USING ERRCODE = '22023';
  END IF;

  v_ids := ARRAY(SELECT p.intent_id FROM leasehold.outbox_pending p
                  WHERE p.intent_id > coalesce(v_current.walked_to, c_first_id) AND p.intent_id <= v_current.walk_to
                  ORDER BY p.intent_id LIMIT p_batch_size);
  looked_at := cardinality(v_ids);
  is_done := looked_at < p_batch_size;
  v_current.walked_to := coalesce(v_ids[looked_at], v_current.walked_to);
  v_ids := ARRAY(SELECT p.intent_id FROM leasehold.outbox_pending p
                   JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
                  WHERE p.intent_id = ANY (v_ids)
                    AND leasehold.may_be_sent_unseen(c.guarantee, c.key_window_seconds, p, v_now));
  -- First the names: a join could read the leases of all streams.
  v_streams := ARRAY(SELECT DISTINCT p.lease_name FROM leasehold.outbox_pending p
                      WHERE p.intent_id = ANY (v_ids) AND p.scope = 'stream');
  PERFORM FROM leasehold.leases l WHERE l.lease_name = ANY (v_streams) ORDER BY l.lease_name FOR NO KEY UPDATE;
  PERFORM FROM leasehold.outbox_pending p WHERE p.intent_id = ANY (v_ids) ORDER BY p.intent_id FOR UPDATE;
  v_now := leasehold.announce_change();
  -- The window of a key may have begun in the lost database, at a time that nobody knows.
  UPDATE leasehold.outbox_pending p
     SET first_tried_at = least(p.first_tried_at, v_now - make_interval(secs => c.key_window_seconds + 1))
    FROM leasehold.contracts c
   WHERE p.intent_id = ANY (v_ids) AND c.target = p.target AND c.version = p.contract_version AND c.guarantee = 'keyed';
  SELECT array_agg(leasehold.new_outcome(
           p.intent_id, 'IN_DOUBT', v_current.began_by, 'database_restored', v_current.note, p_retry_after_seconds => 1)
           ORDER BY p.intent_id)
    INTO v_outcomes
    FROM leasehold.outbox_pending p
    JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
   WHERE p.intent_id = ANY (v_ids)
     AND leasehold.may_be_sent_unseen(c.guarantee, c.key_window_seconds, p, v_now);
  IF v_outcomes IS NOT NULL THEN
    SELECT count(*) FILTER (WHERE a.verdict = 'applied') INTO put_in_doubt
      FROM leasehold.append_and_continue_streams(v_outcomes, v_now) AS a;
  END IF;
  in_doubt_so_far := in_doubt_so_far + put_in_doubt;
  UPDATE leasehold.generations g
     SET walked_to = v_current.walked_to, intents_in_doubt = in_doubt_so_far,
         ready_at = CASE WHEN is_done THEN clock_timestamp() END
   WHERE g.generation_no = v_current.generation_no;
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.repair_restored_intents(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.repair_restored_intents(integer) TO leasehold_operator;
