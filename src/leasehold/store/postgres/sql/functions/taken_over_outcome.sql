-- Return the doubt about a call that was in flight when its lease was taken over, under the name of the holder that is replaced.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.taken_over_outcome(
  p_intent_id uuid, p_replaced_holder text, p_lease_name text, p_lease_epoch bigint
) RETURNS leasehold.outcome
LANGUAGE sql IMMUTABLE AS $$
  SELECT leasehold.new_outcome(
    p_intent_id, 'IN_DOUBT', p_replaced_holder, 'lease_taken_over', 'the lease was taken over while the call was in flight',
    p_lease_name => p_lease_name, p_lease_epoch => p_lease_epoch, p_retry_after_seconds => 1)
$$;
REVOKE ALL ON FUNCTION leasehold.taken_over_outcome(uuid, text, text, bigint) FROM PUBLIC;
