-- Check the arguments that name claims: a worker, and as many tokens as intents. Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.require_claims(p_worker_id text, p_intent_ids uuid[], p_lease_tokens uuid[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  PERFORM leasehold.require_name('p_worker_id', p_worker_id, 128);
  PERFORM leasehold.require_list('p_intent_ids', p_intent_ids, 10000);
  PERFORM leasehold.require_list('p_lease_tokens', p_lease_tokens, 10000);
  IF cardinality(p_intent_ids) <> cardinality(p_lease_tokens) THEN
    RAISE EXCEPTION '% intents need as many tokens, but there are %',
      cardinality(p_intent_ids), cardinality(p_lease_tokens) USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_claims(text, uuid[], uuid[]) FROM PUBLIC;
