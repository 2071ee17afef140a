-- Record what became of one claimed item, or raise; returns the number of the ledger row written.
-- Locks: the pending row; then looks at the clock.
-- Raises: P7002 when the lease is lost (the detail tells lease_lost, already_terminal and not_found
-- apart), P7003 for an invalid state, P7004 for a retry past the ceiling, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.complete_outbox_attempt(
  p_worker_id text, p_intent_id uuid, p_lease_token uuid, p_state text,
  p_retry_after_seconds double precision DEFAULT NULL, p_reason text DEFAULT NULL,
  p_reference text DEFAULT NULL, p_code text DEFAULT NULL, p_detail text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_result record;
BEGIN
  SELECT * INTO v_result FROM leasehold.complete_outbox_attempts(
    p_worker_id,
    jsonb_build_array(jsonb_build_object(
      'intent_id', p_intent_id, 'lease_token', p_lease_token, 'state', p_state, 'reason', p_reason,
      'reference', p_reference, 'code', p_code, 'detail', p_detail,
      'retry_after_seconds', p_retry_after_seconds)));
  IF v_result.verdict = 'ceiling_reached' THEN
    RAISE EXCEPTION 'intent % stands at the retry ceiling of 20', p_intent_id USING ERRCODE = 'P7004',
      HINT = 'Report FAILED; or leave it: repair ends it when the lease expires.';
  ELSIF v_result.verdict <> 'applied' THEN
    RAISE EXCEPTION 'worker % no longer holds intent %', p_worker_id, p_intent_id
      USING ERRCODE = 'P7002', DETAIL = v_result.verdict,
            HINT = 'Drop the result; whoever holds the work now decides.';
  END IF;
  RETURN v_result.attempt_no;
END
$$;
REVOKE ALL ON FUNCTION leasehold.complete_outbox_attempt(
  text, uuid, uuid, text, double precision, text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.complete_outbox_attempt(
  text, uuid, uuid, text, double precision, text, text, text, text) TO leasehold_executor;
