-- List the tokens of the HTTP API after the name p_after ('' for the first page), sorted by name. The list
-- includes revoked tokens and has no hashes.
-- Locks nothing.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.list_tokens(p_after text, p_limit integer)
RETURNS TABLE (
  name text, scopes text[], targets text[], created_at timestamptz, created_by text,
  revoked_at timestamptz, revoked_by text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 1000);
  IF p_after IS NULL THEN
    RAISE EXCEPTION 'p_after is NULL, but must be a name, or empty for the first page' USING ERRCODE = '22023';
  END IF;
  RETURN QUERY
  SELECT t.name, t.scopes, t.targets, t.created_at, t.created_by, t.revoked_at, t.revoked_by
    FROM leasehold.api_tokens t WHERE t.name > p_after ORDER BY t.name LIMIT p_limit;
END
$$;
REVOKE ALL ON FUNCTION leasehold.list_tokens(text, integer) FROM PUBLIC;
