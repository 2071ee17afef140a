-- Refuse the report of a call that had to be begun first (P7003). Stands where a verdict would, so that
-- the whole batch is refused. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.refuse_unbegun(p_intent_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'intent %: a call is reported that was never begun', p_intent_id
    USING ERRCODE = 'P7003', HINT = 'For lookup, blind and every stream, begin before the call.';
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_unbegun(uuid) FROM PUBLIC;
