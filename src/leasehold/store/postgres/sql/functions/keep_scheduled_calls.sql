-- Forget the marks of all calls under a lease that are not in flight, as those that were given back without
-- being made: no row of the ledger says so of them. The holder says which are in flight.
-- Locks: the lease row FOR KEY SHARE, then the lease's marks. Raises: P7002 when the lease is lost, 22023.
CREATE OR REPLACE FUNCTION leasehold.keep_scheduled_calls(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_in_flight uuid[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM leasehold.require_list('p_in_flight', p_in_flight, 10000);
  PERFORM leasehold.require_lease(p_lease_name, p_holder_id, p_lease_epoch, p_in_grace => true);
  PERFORM leasehold.lock_scheduled_calls(p_lease_name);
  UPDATE leasehold.scheduled_calls mark
     SET (intent_ids, attempt_numbers) = (
       SELECT coalesce(array_agg(call.intent_id), '{}'), coalesce(array_agg(call.attempt_no), '{}')
         FROM unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no)
         -- Joined, for a list would be searched from its beginning for each of them.
         JOIN unnest(p_in_flight) AS still (intent_id) USING (intent_id))
   WHERE mark.lease_name = p_lease_name;
END
$$;
REVOKE ALL ON FUNCTION leasehold.keep_scheduled_calls(text, text, bigint, uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.keep_scheduled_calls(text, text, bigint, uuid[]) TO leasehold_executor;
