-- Return the token floor of the next generation: higher than the last one, and higher than every token that was granted before,
-- also by commits that were lost, as long as fewer than a million tokens a second were granted under one key and the clock did
-- not go back. It stays below 2^53 for 285 years. Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.next_token_floor(p_token_floor bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
  SELECT greatest(p_token_floor + 1,
                  (extract(epoch FROM clock_timestamp() - timestamptz '2025-01-01 00:00:00+00') * 1000000)::bigint)
$$;
REVOKE ALL ON FUNCTION leasehold.next_token_floor(bigint) FROM PUBLIC;
