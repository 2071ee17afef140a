-- Search intents by status, target, stream and time, newest first. Returns at most p_limit ids. If the search
-- ended before it reached the oldest intent, searched_to is the last intent that it looked at: continue with
-- p_before. A NULL argument matches everything. Times are those in the ids, to the millisecond; p_since is
-- inclusive and p_until is exclusive.
-- There is no index by target, stream or status, because every enqueue would pay for it. So a call looks at a
-- limited window: by default 100,000 intents, or 10,000 if it must read the final status of each.
-- Locks nothing.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.list_intents(
  p_limit integer, p_status text DEFAULT NULL, p_targets text[] DEFAULT NULL, p_stream text DEFAULT NULL,
  p_since timestamptz DEFAULT NULL, p_until timestamptz DEFAULT NULL, p_before uuid DEFAULT NULL,
  p_window integer DEFAULT NULL
) RETURNS TABLE (intent_ids uuid[], searched_to uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_is_unfinished boolean := p_status IN ('pending', 'in_doubt', 'held', 'confirming');
  v_is_finished boolean := p_status IN ('accepted', 'rejected', 'exhausted', 'cancelled');
  v_window integer := coalesce(p_window, CASE WHEN v_is_finished THEN 10000 ELSE 100000 END);
  v_first uuid := '00000000-0000-0000-0000-000000000000';
  v_end uuid := coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 1000);
  PERFORM leasehold.require_between('p_window', v_window, 1, 1000000);
  IF NOT (v_is_unfinished OR v_is_finished) THEN
    RAISE EXCEPTION 'p_status is %, which is not a status', quote_literal(left(p_status, 80)) USING ERRCODE = '22023';
  END IF;
  IF p_targets IS NOT NULL THEN
    PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  END IF;
  IF p_stream IS NOT NULL THEN
    PERFORM leasehold.require_name('p_stream', p_stream, 255);
  END IF;
  IF p_since IS NOT NULL THEN
    v_first := leasehold.lowest_intent_id(least(greatest(p_since, 'epoch'), '9999-12-31 00:00:00Z'));
  END IF;
  IF p_until IS NOT NULL THEN
    v_end := least(v_end, leasehold.lowest_intent_id(least(greatest(p_until, 'epoch'), '9999-12-31 00:00:00Z')));
  END IF;

  -- Each query stops as soon as the page is full.
  IF v_is_unfinished THEN
    intent_ids := ARRAY(
      SELECT p.intent_id FROM (
        SELECT * FROM leasehold.outbox_pending p WHERE p.intent_id >= v_first AND p.intent_id < v_end
         ORDER BY p.intent_id DESC LIMIT v_window) AS p
       WHERE (p_targets IS NULL OR p.target = ANY (p_targets)) AND (p_stream IS NULL OR p.stream = p_stream)
         AND p_status = CASE WHEN p.due_at = 'infinity' THEN 'held'
                             WHEN p.last_state = 'IN_DOUBT' THEN 'in_doubt'
                             WHEN p.last_state = 'SUBMITTED' THEN 'confirming'
                             ELSE 'pending' END
       ORDER BY p.intent_id DESC LIMIT p_limit);
  ELSIF v_is_finished THEN
    intent_ids := ARRAY(
      SELECT s.intent_id FROM (
        SELECT * FROM leasehold.intent_status s WHERE s.intent_id >= v_first AND s.intent_id < v_end
         ORDER BY s.intent_id DESC LIMIT v_window) AS s
       WHERE (p_targets IS NULL OR s.target = ANY (p_targets)) AND (p_stream IS NULL OR s.stream = p_stream)
         AND s.status = p_status
       ORDER BY s.intent_id DESC LIMIT p_limit);
  ELSE
    intent_ids := ARRAY(
      SELECT i.intent_id FROM (
        SELECT * FROM leasehold.intents i WHERE i.intent_id >= v_first AND i.intent_id < v_end
         ORDER BY i.intent_id DESC LIMIT v_window) AS i
       WHERE (p_targets IS NULL OR i.target = ANY (p_targets)) AND (p_stream IS NULL OR i.stream = p_stream)
       ORDER BY i.intent_id DESC LIMIT p_limit);
  END IF;

  IF cardinality(intent_ids) = p_limit THEN
    searched_to := NULL; -- the last id of the page is the position to continue from
  ELSIF v_is_unfinished THEN
    SELECT p.intent_id INTO searched_to FROM leasehold.outbox_pending p
     WHERE p.intent_id >= v_first AND p.intent_id < v_end
     ORDER BY p.intent_id DESC OFFSET v_window - 1 LIMIT 1;
  ELSE
    SELECT i.intent_id INTO searched_to FROM leasehold.intents i
     WHERE i.intent_id >= v_first AND i.intent_id < v_end
     ORDER BY i.intent_id DESC OFFSET v_window - 1 LIMIT 1;
  END IF;
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.list_intents(integer, text, text[], text, timestamptz, timestamptz, uuid, integer)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.list_intents(integer, text, text[], text, timestamptz, timestamptz, uuid, integer)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
