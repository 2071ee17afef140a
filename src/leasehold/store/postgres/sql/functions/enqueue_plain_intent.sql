-- Accept the plainest intent there is, one of scope item with a payload and nothing else, as
-- enqueue_intents would: the most common call, and judging it as a list would cost it half as much again.
-- Returns its id; NULL, with nothing written, where it is not that plain or cannot be accepted. Locks nothing.
-- Its callers have set the search_path; setting it again would cost more than the call.
CREATE OR REPLACE FUNCTION leasehold.enqueue_plain_intent(p_target text, p_payload jsonb) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
  v_version integer;
  v_scope text;
  v_priority smallint;
  v_deadline_seconds double precision;
  v_now timestamptz;
  v_deadline_at timestamptz;
  v_id uuid;
BEGIN
  IF p_payload IS NULL OR jsonb_typeof(p_payload) = 'null' OR pg_column_size(p_payload) > 1048576 THEN
    RETURN NULL;
  END IF;
  SELECT version, scope, coalesce((terms ->> 'priority')::numeric::smallint, 1::smallint), deadline_seconds
    INTO v_version, v_scope, v_priority, v_deadline_seconds
    FROM leasehold.contracts WHERE target = p_target ORDER BY version DESC LIMIT 1;
  v_now := clock_timestamp();
  v_deadline_at := v_now + make_interval(secs => v_deadline_seconds);
  IF v_scope IS DISTINCT FROM 'item' OR v_deadline_at <= v_now THEN
    RETURN NULL;
  END IF;
  v_id := leasehold.new_intent_id();
  INSERT INTO leasehold.intents (
    intent_id, target, contract_version, submission_key, payload, created_at, deadline_at)
  VALUES (v_id, p_target, v_version, v_id, p_payload, v_now, v_deadline_at);
  INSERT INTO leasehold.outbox_pending (
    intent_id, scope, target, contract_version, priority, due_at, deadline_at, last_modified_at)
  VALUES (v_id, 'item', p_target, v_version, v_priority, v_now, v_deadline_at, v_now);
  RETURN v_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_plain_intent(text, jsonb) FROM PUBLIC;
