-- Refuse a batch that reports a call which had to be begun first (P7003). Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.refuse_unbegun(p_intent_ids uuid[], p_verdicts text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF 'not_begun' = ANY (p_verdicts) THEN
    RAISE EXCEPTION 'intent %: a call is reported that was never begun',
      p_intent_ids[array_position(p_verdicts, 'not_begun')]
      USING ERRCODE = 'P7003', HINT = 'For lookup, blind and every stream, begin before the call.';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_unbegun(uuid[], text[]) FROM PUBLIC;
