-- Remove the call marks of these calls of a lease: they had certainly no effect.
-- Locks: nothing new; the caller has the lease row and the lease's call marks (lock_call_marks).
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.remove_call_marks(p_lease_name text, p_intent_ids uuid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, leasehold, pg_temp AS $$
  UPDATE leasehold.call_marks mark
     SET (intent_ids, attempt_numbers) = (
       SELECT coalesce(array_agg(call.intent_id), '{}'), coalesce(array_agg(call.attempt_no), '{}')
         FROM unnest(mark.intent_ids, mark.attempt_numbers) AS call (intent_id, attempt_no)
        -- Hashed; <> ALL and && would search the whole list for each call.
        WHERE call.intent_id NOT IN (SELECT unnest(p_intent_ids)))
   WHERE mark.lease_name = p_lease_name
     AND EXISTS (SELECT FROM unnest(mark.intent_ids) AS marked (intent_id)
                  WHERE marked.intent_id IN (SELECT unnest(p_intent_ids)))
$$;
REVOKE ALL ON FUNCTION leasehold.remove_call_marks(text, uuid[]) FROM PUBLIC;
