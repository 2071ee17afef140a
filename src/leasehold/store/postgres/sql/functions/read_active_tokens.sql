-- Return the active tokens of the HTTP API with their hashes, at most 1000. Only the role that serves the HTTP
-- API may call it.
-- Locks nothing. Raises nothing.
CREATE OR REPLACE FUNCTION leasehold.read_active_tokens()
RETURNS TABLE (
  name text, token_hash bytea, scopes text[], targets text[], created_at timestamptz, created_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT t.name, t.token_hash, t.scopes, t.targets, t.created_at, t.created_by
    FROM leasehold.api_tokens t WHERE t.revoked_at IS NULL ORDER BY t.name LIMIT 1000
$$;
REVOKE ALL ON FUNCTION leasehold.read_active_tokens() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_active_tokens() TO leasehold_api;
