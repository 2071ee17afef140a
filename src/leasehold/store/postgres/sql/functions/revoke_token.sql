-- Revoke a token of the HTTP API, permanently. Instances notice it when they next read the active tokens.
-- Verdicts: revoked, already_revoked, not_found.
-- Locks: the row of the token.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.revoke_token(p_name text, p_operator text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_revoked_at timestamptz;
BEGIN
  PERFORM leasehold.require_name('p_name', p_name, 64);
  PERFORM leasehold.require_name('p_operator', p_operator, 128);
  SELECT revoked_at INTO v_revoked_at FROM leasehold.api_tokens WHERE name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'not_found';
  ELSIF v_revoked_at IS NOT NULL THEN
    RETURN 'already_revoked';
  END IF;
  UPDATE leasehold.api_tokens SET revoked_at = clock_timestamp(), revoked_by = p_operator WHERE name = p_name;
  RETURN 'revoked';
END
$$;
REVOKE ALL ON FUNCTION leasehold.revoke_token(text, text) FROM PUBLIC;
