-- Create the new intent that redrives a finished one, and its first ledger row. With the old submission key, the
-- new fencing tokens start above every token that was granted for that key, whatever lease and scope the new intent has.
-- The base leaves out the floor of the generation, which is part of every token anyway and never falls.
-- Locks: the stream's row, already held by the caller; the new key. Raises: nothing of its own.
CREATE OR REPLACE FUNCTION leasehold.redrive_intent(
  p_intent_id uuid, p_with_new_key boolean, p_operator text, p_note text
) RETURNS TABLE (verdict text, new_intent_id uuid)
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_old leasehold.intents;
  v_contract leasehold.contracts;
  v_now timestamptz := leasehold.announce_change();
  v_id uuid := leasehold.new_intent_id();
  v_stream_seq bigint;
  v_token_base bigint := 0;
BEGIN
  SELECT * INTO STRICT v_old FROM leasehold.intents WHERE intent_id = p_intent_id;
  SELECT * INTO v_contract FROM leasehold.contracts WHERE target = v_old.target ORDER BY version DESC LIMIT 1;
  IF NOT FOUND OR (v_contract.scope = 'stream' AND v_old.stream IS NULL) THEN
    RETURN QUERY SELECT 'unknown_target', NULL::uuid;
    RETURN;
  END IF;
  IF v_contract.scope = 'stream' THEN
    UPDATE leasehold.streams SET last_seq = last_seq + 1
     WHERE target = v_old.target AND stream = v_old.stream RETURNING last_seq INTO v_stream_seq;
  END IF;

  IF NOT p_with_new_key THEN
    -- The old intent is finished: no epoch that is granted from now on can call it.
    SELECT leasehold.fencing_token(0, v_old.token_base, greatest(
             0, max(a.lease_epoch),
             (SELECT max(l.lease_epoch)
                FROM leasehold.contracts c
                JOIN leasehold.leases l ON l.lease_name = CASE c.scope
                  WHEN 'cluster' THEN c.lease_name
                  WHEN 'stream' THEN leasehold.stream_lease_name(c.target, v_old.stream) END
               WHERE c.target = v_old.target AND c.version = v_old.contract_version)), max(a.attempt_no))
      INTO v_token_base
      FROM leasehold.outbox_attempts a WHERE a.intent_id = v_old.intent_id;
  END IF;

  INSERT INTO leasehold.intents (
    intent_id, target, contract_version, stream, stream_seq, idempotency_key, is_key_of_all_targets,
    submission_key, payload, body,
    content_type, payload_hash, metadata, trace_context, created_at,
    deadline_at, redrive_of, token_base)
  VALUES (
    v_id, v_old.target, v_contract.version, v_old.stream, v_stream_seq, NULL, false,
    CASE WHEN p_with_new_key THEN v_id ELSE v_old.submission_key END, v_old.payload, v_old.body,
    v_old.content_type, v_old.payload_hash, v_old.metadata, v_old.trace_context, v_now,
    v_now + make_interval(secs => v_contract.deadline_seconds), v_old.intent_id, v_token_base)
    ON CONFLICT (redrive_of) WHERE redrive_of IS NOT NULL DO NOTHING;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'already_redriven', i.intent_id FROM leasehold.intents i WHERE i.redrive_of = p_intent_id;
    RETURN;
  END IF;
  INSERT INTO leasehold.outbox_pending (
    intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, content_bytes, due_at, deadline_at,
    attempt_count, last_state, first_tried_at, last_modified_at, is_claimable)
  VALUES (
    v_id, v_contract.scope, v_old.target, v_contract.version,
    CASE v_contract.scope WHEN 'cluster' THEN v_contract.lease_name
                          WHEN 'stream' THEN leasehold.stream_lease_name(v_old.target, v_old.stream) END,
    v_old.stream, v_stream_seq, v_contract.priority,
    leasehold.json_text_bytes(v_old.payload) + coalesce(octet_length(v_old.body), 0)
      + leasehold.json_text_bytes(v_old.metadata),
    v_now, v_now + make_interval(secs => v_contract.deadline_seconds),
    1, 'RETRYABLE',
    -- With the old key, the gateway's key window started when the gateway may first have seen the key.
    CASE WHEN NOT p_with_new_key THEN
      (SELECT min(a.started_at) FROM leasehold.outbox_attempts a
        WHERE a.intent_id IN (v_old.intent_id, v_old.submission_key)) END,
    v_now,
    v_contract.scope = 'stream'
      AND cardinality(leasehold.idle_streams(ARRAY[leasehold.stream_lease_name(v_old.target, v_old.stream)])) > 0);
  INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, reason, holder, started_at, finished_at, detail)
    VALUES (v_id, 1, 'RETRYABLE', 'redriven_by_operator', p_operator, v_now, v_now,
            left(format('redrive of %s: %s', p_intent_id, p_note), 2000));
  RETURN QUERY SELECT 'redriven', v_id;
END
$$;
REVOKE ALL ON FUNCTION leasehold.redrive_intent(uuid, boolean, text, text) FROM PUBLIC;
