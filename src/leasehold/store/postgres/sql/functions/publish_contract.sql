-- Publish a new version of a target's terms and return its number. If the terms are unchanged, it returns the
-- current number. It fills in the defaults of missing terms, so a contract row is complete by itself.
-- Locks: the table contracts against other writers until commit. Readers do not wait.
-- Raises: 22023 if the terms are invalid, name no gateway, have retry terms where the database does not read them, or contain
-- a secret instead of the name of an environment variable; P7004 if they ask for more than 20 attempts.
CREATE OR REPLACE FUNCTION leasehold.publish_contract(p_target text, p_terms jsonb, p_operator text)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_terms jsonb;
  v_current leasehold.contracts;
  v_constraint text;
BEGIN
  PERFORM leasehold.require_name('p_operator', p_operator, 128);
  IF p_target IS NULL OR p_target !~ '^[a-z0-9][a-z0-9._-]{0,63}$' THEN
    RAISE EXCEPTION 'p_target is %, but must be 1 to 64 of a-z 0-9 . _ - and begin with a letter or digit',
      coalesce(quote_literal(left(p_target, 80)), 'NULL') USING ERRCODE = '22023';
  END IF;
  IF p_terms IS NULL OR jsonb_typeof(p_terms) <> 'object' OR length(p_terms::text) > 65536 THEN
    RAISE EXCEPTION 'p_terms must be a JSON object of at most 64 KiB' USING ERRCODE = '22023';
  END IF;
  -- No instance can submit under a version without a gateway, so a forgotten gateway would stop all claims.
  IF NOT p_terms ? 'gateway' THEN
    RAISE EXCEPTION 'the terms of target % name no gateway, so no instance can submit its intents', quote_literal(p_target)
      USING ERRCODE = '22023',
            HINT = 'Add "gateway". If another program submits the intents, write "gateway": null.';
  END IF;
  IF (p_terms ->> 'attempts_max')::integer > 20 THEN
    RAISE EXCEPTION 'attempts_max is %, but the retry ceiling is 20', p_terms ->> 'attempts_max'
      USING ERRCODE = 'P7004';
  END IF;
  -- In leasehold.toml they are among the retry terms. Here they would be ignored.
  IF p_terms -> 'retry' ?| ARRAY['attempts_max', 'policy'] THEN
    RAISE EXCEPTION 'the terms of target % have attempts_max or policy under retry', quote_literal(p_target)
      USING ERRCODE = '22023', HINT = 'Give attempts_max and retry_policy beside retry, not in it.';
  END IF;
  -- Every enqueue reads the priority from the terms and would fail on an invalid one.
  IF p_terms -> 'priority' NOT IN ('0', '1', '2', '3') THEN
    RAISE EXCEPTION 'priority is %, but must be from 0 (first) to 3 (last)', left(p_terms ->> 'priority', 80)
      USING ERRCODE = '22023';
  END IF;
  -- Every role may read contracts, so a secret must not be stored here in place of the name of its variable.
  IF jsonb_path_exists(p_terms, '$.gateway.signing_secret_env ? (!(@ like_regex "^[A-Z_][A-Z0-9_]{0,127}$"))')
     OR jsonb_path_exists(p_terms, '$.gateway.secret_headers.* ? (!(@ like_regex "^[A-Z_][A-Z0-9_]{0,127}$"))') THEN
    RAISE EXCEPTION 'secret_headers and signing_secret_env must name environment variables in capitals, such as SMS_TOKEN, never the secret itself'
      USING ERRCODE = '22023';
  END IF;

  v_terms := jsonb_build_object(
      'retry_policy', 'max_attempts',
      'attempts_max', CASE p_terms ->> 'retry_policy' WHEN 'one_shot' THEN 1 ELSE 20 END,
      'lease_seconds', CASE WHEN p_terms #>> '{gateway,kind}' <> 'python' THEN 60 ELSE 30 END,
      'call_timeout_seconds', 25)
    || CASE p_terms ->> 'scope' WHEN 'cluster'
         THEN '{"lease_name": "submission-manager-executor"}'::jsonb ELSE '{}'::jsonb END
    || p_terms;
  -- The lease time of a leader is a setting of its instance, 60 seconds by default.
  v_terms := jsonb_build_object('quarantine_seconds', greatest(
      2 * (v_terms ->> 'lease_seconds')::double precision,
      CASE v_terms ->> 'scope' WHEN 'cluster' THEN 120 END,
      (v_terms ->> 'call_timeout_seconds')::double precision)) || v_terms;

  LOCK TABLE leasehold.contracts IN SHARE ROW EXCLUSIVE MODE;
  SELECT * INTO v_current FROM leasehold.contracts
    WHERE target = p_target ORDER BY version DESC LIMIT 1;
  IF v_current.terms = v_terms THEN
    RETURN v_current.version;
  END IF;
  INSERT INTO leasehold.contracts (target, version, terms, published_by)
    VALUES (p_target, coalesce(v_current.version, 0) + 1, v_terms, p_operator);
  -- Here and not by the first enqueuer, for whose transaction the others would wait.
  IF v_terms ->> 'scope' = 'stream' THEN
    INSERT INTO leasehold.stream_floors (target) VALUES (p_target) ON CONFLICT DO NOTHING;
  END IF;
  RETURN coalesce(v_current.version, 0) + 1;
EXCEPTION
  WHEN check_violation OR not_null_violation OR invalid_text_representation OR numeric_value_out_of_range THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    RAISE EXCEPTION 'the terms of target % are refused: %', quote_literal(p_target),
      coalesce(nullif(v_constraint, ''), SQLERRM)
      USING ERRCODE = '22023', DETAIL = coalesce(v_terms, p_terms)::text,
            HINT = 'Required: scope (item, stream or cluster) and guarantee (keyed, fenced, lookup or blind).';
END
$$;
REVOKE ALL ON FUNCTION leasehold.publish_contract(text, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.publish_contract(text, jsonb, text) TO leasehold_operator;
