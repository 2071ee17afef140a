-- The fencing token of a call. It rises with every attempt, with every new holder of a lease, and with every generation of the
-- database. p_lease_epoch is 0 for a claim. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.fencing_token(
  p_token_floor bigint, p_token_base bigint, p_lease_epoch bigint, p_attempt_no integer
) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT p_token_floor + p_token_base + p_lease_epoch + p_attempt_no
$$;
REVOKE ALL ON FUNCTION leasehold.fencing_token(bigint, bigint, bigint, integer) FROM PUBLIC;
