-- Accept one intent of scope item or cluster by the rules of enqueue_intents. Most calls have one intent, and
-- this function needs a third less time for it than the path for a list. Returns verdict, id and problem. If
-- the target has scope stream, it writes nothing and returns a NULL verdict; the caller then uses the path for
-- a list.
-- Locks: the new key.
-- Raises: nothing of its own. It has no SET search_path, which would cost more than the call: its callers have
-- set it.
CREATE OR REPLACE FUNCTION leasehold.enqueue_one(
  p_new leasehold.new_intent, OUT verdict text, OUT intent_id uuid, OUT problem text
)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  -- Taken before the clock is read: workers look for late commits from where they stood when they first saw the id of the
  -- transaction. Without this it would get its id later, perhaps after it has waited for its key.
  v_transaction_id xid8 := pg_current_xact_id();
  v_version integer;
  v_scope text;
  v_lease_name text;
  v_priority smallint;
  v_deadline_seconds double precision;
  v_now timestamptz;
  v_body bytea := decode(p_new.body, 'base64');
  v_payload_text text;  -- made once, for its size and its hash
  v_content_bytes integer;
  v_due_at timestamptz;
  v_deadline_at timestamptz;
  v_is_key_of_all_targets boolean := p_new.idempotency_key IS NOT NULL AND coalesce(p_new.key_scope = 'all', false);
  v_hash bytea;
  v_first leasehold.intents;
  v_difference text;
BEGIN
  SELECT c.version, c.scope, c.lease_name, c.priority, c.deadline_seconds
    INTO v_version, v_scope, v_lease_name, v_priority, v_deadline_seconds
    FROM leasehold.contracts c WHERE c.target = p_new.target ORDER BY c.version DESC LIMIT 1;
  IF v_scope = 'stream' THEN
    RETURN;
  END IF;
  v_now := CASE v_scope WHEN 'cluster' THEN leasehold.announce_change() ELSE clock_timestamp() END;
  v_payload_text := p_new.payload::text;
  v_content_bytes := coalesce(octet_length(v_payload_text), octet_length(v_body), 0);
  v_due_at := leasehold.intent_due_at(p_new.due_at, p_new.delay_seconds, v_now);
  v_deadline_at := leasehold.intent_deadline_at(p_new.deadline_at, p_new.deadline_seconds, v_deadline_seconds, v_now);
  problem := leasehold.intent_problem(
    p_new.target, p_new.payload, v_body, v_content_bytes, p_new.content_type, p_new.idempotency_key, p_new.key_scope, p_new.stream,
    p_new.priority, p_new.due_at, p_new.delay_seconds, p_new.deadline_at, p_new.deadline_seconds, p_new.metadata,
    p_new.trace_context, v_version, v_scope, v_due_at, v_deadline_at, v_now);
  IF p_new.idempotency_key IS NOT NULL AND v_content_bytes <= 1048576 THEN
    v_hash := leasehold.content_hash(v_payload_text, p_new.content_type, v_body);
  END IF;

  IF problem IS NULL THEN
    intent_id := leasehold.new_intent_id();
    IF p_new.idempotency_key IS NULL THEN
      -- Without a key there is no conflict to check. The check takes 10 percent of the call.
      INSERT INTO leasehold.intents (
        intent_id, target, contract_version, stream, submission_key, payload, body, content_type, metadata,
        trace_context, created_at, deadline_at)
      VALUES (intent_id, p_new.target, v_version, p_new.stream, intent_id, p_new.payload, v_body, p_new.content_type,
              p_new.metadata, p_new.trace_context, v_now, v_deadline_at);
    ELSE
      INSERT INTO leasehold.intents (
        intent_id, target, contract_version, stream, idempotency_key, is_key_of_all_targets, submission_key,
        payload, body, content_type, payload_hash, metadata, trace_context, created_at, deadline_at)
      VALUES (intent_id, p_new.target, v_version, p_new.stream, p_new.idempotency_key, v_is_key_of_all_targets, intent_id,
              p_new.payload, v_body, p_new.content_type, v_hash, p_new.metadata, p_new.trace_context, v_now,
              v_deadline_at)
          ON CONFLICT DO NOTHING;
    END IF;
    IF FOUND THEN
      INSERT INTO leasehold.outbox_pending (
        intent_id, scope, target, contract_version, lease_name, stream, priority, content_bytes, due_at, deadline_at,
        last_modified_at)
      VALUES (intent_id, v_scope, p_new.target, v_version, v_lease_name, p_new.stream,
              coalesce(p_new.priority, v_priority), v_content_bytes + leasehold.json_text_bytes(p_new.metadata), v_due_at,
              v_deadline_at, v_now);
      verdict := 'accepted';
      RETURN;
    END IF;
  END IF;
  IF v_hash IS NOT NULL THEN
    v_first := leasehold.first_intent_of_key(p_new.target, p_new.idempotency_key, v_is_key_of_all_targets);
    v_difference := leasehold.key_difference(v_first, p_new.target, v_hash, p_new.stream);
  END IF;
  verdict := leasehold.enqueue_verdict(false, v_first.intent_id IS NOT NULL AND v_difference IS NULL, problem);
  intent_id := CASE WHEN verdict IN ('duplicate', 'conflict') THEN v_first.intent_id END;
  problem := leasehold.enqueue_problem(
    verdict, p_new.target, v_body IS NOT NULL, v_content_bytes, v_difference, problem);
END
$$;
REVOKE ALL ON FUNCTION leasehold.enqueue_one(leasehold.new_intent) FROM PUBLIC;
