-- Return an outcome that repair or an operator decides on; a gateway has said nothing about it, but for the reference.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.new_outcome(
  p_intent_id uuid, p_state text, p_holder text, p_reason text, p_detail text, p_reference text DEFAULT NULL,
  p_lease_name text DEFAULT NULL, p_lease_epoch bigint DEFAULT NULL, p_lease_token uuid DEFAULT NULL,
  p_retry_after_seconds double precision DEFAULT NULL
) RETURNS leasehold.outcome
LANGUAGE sql IMMUTABLE AS $$
  SELECT ROW (p_intent_id, p_state, p_holder, p_reason, p_lease_token, p_lease_name, p_lease_epoch, p_reference, NULL,
              p_detail, p_retry_after_seconds, NULL, NULL)::leasehold.outcome
$$;
REVOKE ALL ON FUNCTION leasehold.new_outcome(
  uuid, text, text, text, text, text, text, bigint, uuid, double precision) FROM PUBLIC;
