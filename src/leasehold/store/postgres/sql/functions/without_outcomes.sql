-- Return the outcomes without those of the given intents, in the same order. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.without_outcomes(p_outcomes leasehold.outcome[], p_intent_ids uuid[])
RETURNS leasehold.outcome[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT coalesce(array_agg(o ORDER BY o.intent_id), '{}')
    FROM unnest(p_outcomes) AS o WHERE o.intent_id NOT IN (SELECT unnest(p_intent_ids))
$$;
REVOKE ALL ON FUNCTION leasehold.without_outcomes(leasehold.outcome[], uuid[]) FROM PUBLIC;
