-- Take back the "about to call" marks of calls that a leader began and for which it certainly sent nothing. Nothing goes on the
-- ledger, and a successor does not put them in doubt. An intent without an attempt on the ledger was never tried: its
-- first_tried_at goes too. Returns how many were taken back; those that are not begun under this epoch stay as they are.
-- The marks of mark_calls are not touched: see unmark_calls.
-- Locks: the lease row FOR KEY SHARE, then the pending rows by id. Reads the clock after that.
-- Raises: P7002 if the lease is lost, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.release_leased_attempts(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_intent_ids uuid[]
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_now timestamptz;
  v_released integer;
BEGIN
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  PERFORM FROM leasehold.outbox_pending p
    WHERE p.intent_id = ANY (p_intent_ids) ORDER BY p.intent_id FOR NO KEY UPDATE;
  v_now := leasehold.announce_change();
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  UPDATE leasehold.outbox_pending p
     SET begun_at = NULL, begun_epoch = NULL,
         first_tried_at = CASE WHEN p.attempt_count > 0 THEN p.first_tried_at END,
         last_modified_at = greatest(v_now, p.last_modified_at + interval '1 microsecond')
   WHERE p.intent_id = ANY (p_intent_ids) AND p.lease_name = p_lease_name AND p.begun_epoch = p_lease_epoch;
  GET DIAGNOSTICS v_released = ROW_COUNT;
  RETURN v_released;
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_leased_attempts(text, text, bigint, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_leased_attempts(text, text, bigint, uuid[]) TO leasehold_executor;
