-- Record the result of one claimed item and return the number of its ledger row. Unlike
-- complete_outbox_attempts, it raises instead of returning a verdict, and waits for a row that is locked.
-- Locks: the pending row. Reads the clock after that.
-- Raises: P7002 if the claim is lost (DETAIL is lease_lost, already_terminal or not_found), P7003 for an
-- invalid state, P7004 for a retry above the ceiling, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.complete_outbox_attempt(
  p_worker_id text, p_intent_id uuid, p_lease_token uuid, p_state text,
  p_retry_after_seconds double precision DEFAULT NULL, p_reason text DEFAULT NULL,
  p_reference text DEFAULT NULL, p_code text DEFAULT NULL, p_detail text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_result record;
BEGIN
  PERFORM FROM leasehold.outbox_pending p WHERE p.intent_id = p_intent_id FOR UPDATE;
  SELECT * INTO v_result FROM leasehold.complete_outbox_attempts(
    p_worker_id,
    jsonb_build_array(jsonb_build_object(
      'intent_id', p_intent_id, 'lease_token', p_lease_token, 'state', p_state, 'reason', p_reason,
      'reference', p_reference, 'code', p_code, 'detail', p_detail,
      'retry_after_seconds', p_retry_after_seconds)));
  IF v_result.verdict = 'ceiling_reached' THEN
    RAISE EXCEPTION 'intent % has reached the retry ceiling of 20 attempts', p_intent_id USING ERRCODE = 'P7004',
      HINT = 'Report FAILED, or do nothing: repair finishes the intent when the claim expires.';
  ELSIF v_result.verdict <> 'applied' THEN
    RAISE EXCEPTION 'worker % no longer holds intent %', p_worker_id, p_intent_id
      USING ERRCODE = 'P7002', DETAIL = v_result.verdict,
            HINT = 'Drop the result. The current holder decides about the intent.';
  END IF;
  RETURN v_result.attempt_no;
END
$$;
REVOKE ALL ON FUNCTION leasehold.complete_outbox_attempt(
  text, uuid, uuid, text, double precision, text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.complete_outbox_attempt(
  text, uuid, uuid, text, double precision, text, text, text, text) TO leasehold_executor;
