-- Remove all call marks of a lease except those of the calls in p_keep. It is for calls that were marked but
-- not made: no ledger row will end their marks.
-- Locks: the lease row FOR KEY SHARE, then the lease's call marks.
-- Raises: P7002 if the lease is lost, 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.unmark_calls(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_keep uuid[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM leasehold.require_list('p_keep', p_keep, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  PERFORM leasehold.lock_call_marks(p_lease_name);
  UPDATE leasehold.call_marks mark
     SET (intent_ids, attempt_numbers) = (
       SELECT coalesce(array_agg(call.intent_id), '{}'), coalesce(array_agg(call.attempt_no), '{}')
         FROM unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no)
         -- A join, because = ANY would search the whole list for each call.
         JOIN unnest(p_keep) AS kept (intent_id) USING (intent_id))
   WHERE mark.lease_name = p_lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.unmark_calls(text, text, bigint, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.unmark_calls(text, text, bigint, uuid[]) TO leasehold_executor;
