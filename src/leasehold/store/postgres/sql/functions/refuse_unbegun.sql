-- Refuse the report of a call that should have been begun first. It is called in place of a verdict and raises,
-- so the whole batch is refused.
-- Locks nothing.
-- Raises: P7003, always.
CREATE OR REPLACE FUNCTION leasehold.refuse_unbegun(p_intent_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'intent %: the result reports a call that was never begun', p_intent_id
    USING ERRCODE = 'P7003', HINT = 'Begin the attempt before the call: lookup, blind and every stream need it.';
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_unbegun(uuid) FROM PUBLIC;
