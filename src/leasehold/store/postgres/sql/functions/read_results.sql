-- Parse the results that an executor reports and return them sorted by intent id. One invalid result refuses
-- all of them.
-- Locks nothing.
-- Raises: P7003 for a state that is unknown or reserved; 22023 for a retry without a delay, a value out of
-- bounds, or an intent that is named twice.
CREATE OR REPLACE FUNCTION leasehold.read_results(
  p_results jsonb, p_holder text, p_lease_name text, p_lease_epoch bigint
) RETURNS leasehold.outcome[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_outcomes leasehold.outcome[];
  v_problems text[];
  v_distinct integer;
BEGIN
  IF p_results IS NULL OR jsonb_typeof(p_results) <> 'array' THEN
    RAISE EXCEPTION 'p_results is %, but must be a JSON array of objects',
      coalesce(jsonb_typeof(p_results), 'NULL') USING ERRCODE = '22023';
  END IF;
  PERFORM leasehold.require_between('the number of results', jsonb_array_length(p_results), 0, 10000);

  SELECT array_agg(ROW (given.intent_id, given.state, p_holder, given.reason, given.lease_token, p_lease_name,
                        p_lease_epoch, given.reference, given.code, given.detail, given.retry_after_seconds,
                        given.elapsed_seconds, given.attempt_no)::leasehold.outcome ORDER BY given.intent_id),
         count(DISTINCT given.intent_id),
         array_agg(coalesce(given.intent_id::text, '?') || ': ' || given.problem) FILTER (WHERE given.problem IS NOT NULL)
    INTO v_outcomes, v_distinct, v_problems
    FROM (SELECT entry.*, CASE
            WHEN entry.intent_id IS NULL THEN 'intent_id is missing'
            WHEN entry.state IS NULL
                 OR entry.state NOT IN ('DISPATCHED', 'FAILED', 'RETRYABLE', 'IN_DOUBT', 'SUBMITTED', 'DEFERRED')
              THEN format('%L is not a state that an executor may report', entry.state)
            WHEN coalesce(entry.retry_after_seconds NOT BETWEEN 0 AND 2592000,
                          entry.state NOT IN ('DISPATCHED', 'FAILED'))
              THEN 'retry_after_seconds must be from 0 to 2592000 (30 days)'
            WHEN entry.elapsed_seconds NOT BETWEEN 0 AND 604800
              THEN 'elapsed_seconds must be from 0 to 604800 (7 days)'
            WHEN entry.state = 'SUBMITTED' AND entry.reference IS NULL
              THEN 'SUBMITTED needs the reference from the gateway'
            WHEN length(entry.reference) > 255 OR length(entry.reason) > 64 OR length(entry.code) > 64
              THEN 'reference is limited to 255 characters, reason and code to 64'
            WHEN entry.reason IN ('max_attempts', 'one_shot')
              THEN 'only the database may give the reasons max_attempts and one_shot'
          END AS problem
          FROM jsonb_to_recordset(p_results) AS entry (
            intent_id uuid, lease_token uuid, state text, reason text, reference text, code text, detail text,
            retry_after_seconds double precision, elapsed_seconds double precision, attempt_no integer)) AS given;

  IF v_problems[1] LIKE '%is not a state%' THEN
    RAISE EXCEPTION 'intent %', v_problems[1] USING ERRCODE = 'P7003',
      HINT = 'Allowed: DISPATCHED, FAILED, RETRYABLE, IN_DOUBT, SUBMITTED, DEFERRED. Only repair writes ZOMBIE_REQUEUE.';
  ELSIF v_problems IS NOT NULL THEN
    RAISE EXCEPTION 'intent %', v_problems[1] USING ERRCODE = '22023';
  ELSIF v_distinct < cardinality(v_outcomes) THEN
    RAISE EXCEPTION 'p_results names an intent twice' USING ERRCODE = '22023';
  END IF;
  RETURN coalesce(v_outcomes, '{}');
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_results(jsonb, text, text, bigint) FROM PUBLIC;
