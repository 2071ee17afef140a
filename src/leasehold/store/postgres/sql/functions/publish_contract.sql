-- Publish a new version of a target's terms and return its number; the current number again where
-- the terms have not changed. Terms that are left out get their defaults here, so that a contract
-- row is complete on its own.
-- Locks: the contracts table against other publishers, until commit; readers do not wait.
-- Raises: 22023 when the terms cannot work, leave out the gateway or hold a secret in place of the name
-- of its environment variable, P7004 when they ask for more than 20 attempts.
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
  -- Left out by mistake, it would make a version that no instance can submit for, and claims would stop.
  IF NOT p_terms ? 'gateway' THEN
    RAISE EXCEPTION 'the terms of target % name no gateway, so no instance could submit its intents', quote_literal(p_target)
      USING ERRCODE = '22023',
            HINT = 'Add "gateway". If another program submits the intents, say so: "gateway": null.';
  END IF;
  IF (p_terms ->> 'attempts_max')::integer > 20 THEN
    RAISE EXCEPTION 'attempts_max is %, but the retry ceiling is 20', p_terms ->> 'attempts_max'
      USING ERRCODE = 'P7004';
  END IF;
  -- Enqueuers read it from the terms: what is no priority would make them all fail.
  IF p_terms -> 'priority' NOT IN ('0', '1', '2', '3') THEN
    RAISE EXCEPTION 'priority is %, but must be from 0 (first) to 3 (last)', left(p_terms ->> 'priority', 80)
      USING ERRCODE = '22023';
  END IF;
  -- Everybody may read a contract, so a secret that was written in place of a variable's name must not get in.
  IF jsonb_path_exists(p_terms, '$.gateway.signing_secret_env ? (!(@ like_regex "^[A-Z_][A-Z0-9_]{0,127}$"))')
     OR jsonb_path_exists(p_terms, '$.gateway.secret_headers.* ? (!(@ like_regex "^[A-Z_][A-Z0-9_]{0,127}$"))') THEN
    RAISE EXCEPTION 'secret_headers and signing_secret_env must name environment variables in capitals, such as SMS_TOKEN, never the secret itself'
      USING ERRCODE = '22023';
  END IF;

  v_terms := jsonb_build_object(
      'retry_policy', 'max_attempts',
      'attempts_max', CASE p_terms ->> 'retry_policy' WHEN 'one_shot' THEN 1 ELSE 20 END,
      'lease_seconds', 30,
      'call_timeout_seconds', 25)
    || CASE p_terms ->> 'scope' WHEN 'cluster'
         THEN '{"lease_name": "submission-manager-executor"}'::jsonb ELSE '{}'::jsonb END
    || p_terms;
  -- A leader's lease is a setting of its instance, 60 seconds by default.
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
  RETURN coalesce(v_current.version, 0) + 1;
EXCEPTION
  WHEN check_violation OR not_null_violation OR invalid_text_representation OR numeric_value_out_of_range THEN
    GET STACKED DIAGNOSTICS v_constraint = CONSTRAINT_NAME;
    RAISE EXCEPTION 'the terms of target % are refused: %', quote_literal(p_target),
      coalesce(nullif(v_constraint, ''), SQLERRM)
      USING ERRCODE = '22023', DETAIL = coalesce(v_terms, p_terms)::text,
            HINT = 'Needed: scope item|stream|cluster, guarantee keyed|fenced|lookup|blind.';
END
$$;
REVOKE ALL ON FUNCTION leasehold.publish_contract(text, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.publish_contract(text, jsonb, text) TO leasehold_operator;
