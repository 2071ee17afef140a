-- Add a token of the HTTP API and return its time of creation. The table stores only the SHA-256 hash of the
-- token. The scopes (ingest, read, operate, audit) say what the token may do. p_targets says which targets it
-- may access; NULL means all. A name is never reused, because ledger rows contain it. At most 1000 tokens can
-- be active.
-- Locks: the table api_tokens against other writers until commit. Readers do not wait.
-- Raises: 22023 for bad arguments, a name or token that exists already, or too many tokens.
CREATE OR REPLACE FUNCTION leasehold.create_token(
  p_name text, p_token_hash bytea, p_scopes text[], p_targets text[], p_operator text
) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_refused text;
  v_created_at timestamptz;
BEGIN
  PERFORM leasehold.require_name('p_operator', p_operator, 128);
  IF p_name IS NULL OR p_name !~ '^[a-z0-9][a-z0-9._-]{0,63}$' THEN
    RAISE EXCEPTION 'p_name is %, but must be 1 to 64 of a-z 0-9 . _ - and begin with a letter or digit',
      coalesce(quote_literal(left(p_name, 80)), 'NULL') USING ERRCODE = '22023';
  END IF;
  IF p_token_hash IS NULL OR octet_length(p_token_hash) <> 32 THEN
    RAISE EXCEPTION 'p_token_hash must be the 32 bytes of a SHA-256 hash' USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_list('p_scopes', p_scopes, 4);
  SELECT scope INTO v_refused FROM unnest(p_scopes) AS scope
   WHERE scope NOT IN ('ingest', 'read', 'operate', 'audit') LIMIT 1;
  IF FOUND OR cardinality(p_scopes) = 0 THEN
    RAISE EXCEPTION 'p_scopes has %, but must list one or more of ingest, read, operate, audit',
      coalesce(quote_literal(left(v_refused, 80)), 'no scope') USING ERRCODE = '22023';
  END IF;
  IF p_targets IS NOT NULL THEN
    PERFORM leasehold.require_list('p_targets', p_targets, 1000);
    SELECT target INTO v_refused FROM unnest(p_targets) AS target
     WHERE target !~ '^[a-z0-9][a-z0-9._-]{0,63}$' LIMIT 1;
    IF FOUND OR cardinality(p_targets) = 0 THEN
      RAISE EXCEPTION 'p_targets has %, but must list names of targets, or be NULL for all targets',
        coalesce(quote_literal(left(v_refused, 80)), 'no target') USING ERRCODE = '22023';
    END IF;
  END IF;

  LOCK TABLE leasehold.api_tokens IN SHARE ROW EXCLUSIVE MODE;
  IF EXISTS (SELECT FROM leasehold.api_tokens WHERE name = p_name) THEN
    RAISE EXCEPTION 'a token named % already exists; the name of a revoked token cannot be used again either',
      quote_literal(p_name) USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM leasehold.api_tokens WHERE token_hash = p_token_hash) THEN
    RAISE EXCEPTION 'this token already exists under another name' USING ERRCODE = '22023';
  ELSIF (SELECT count(*) >= 1000 FROM leasehold.api_tokens WHERE revoked_at IS NULL) THEN
    RAISE EXCEPTION '1000 tokens are active, which is the maximum; revoke a token first'
      USING ERRCODE = '22023';
  END IF;
  INSERT INTO leasehold.api_tokens (name, token_hash, scopes, targets, created_at, created_by)
    VALUES (p_name, p_token_hash, p_scopes, p_targets, clock_timestamp(), p_operator)
    RETURNING created_at INTO v_created_at;
  RETURN v_created_at;
END
$$;
REVOKE ALL ON FUNCTION leasehold.create_token(text, bytea, text[], text[], text) FROM PUBLIC;
