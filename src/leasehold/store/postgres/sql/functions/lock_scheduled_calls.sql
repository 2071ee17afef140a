-- The mark of the calls that may be in flight under a lease, held still until the end of the transaction; made
-- where there is none yet. Who hands out calls and who intervenes meet here: neither acts on what the
-- other is about to change. Locks: the mark. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_scheduled_calls(p_lease_name text) RETURNS leasehold.scheduled_calls
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_calls leasehold.scheduled_calls;
BEGIN
  SELECT * INTO v_calls FROM leasehold.scheduled_calls WHERE lease_name = p_lease_name FOR UPDATE;
  IF NOT FOUND THEN
    INSERT INTO leasehold.scheduled_calls VALUES (p_lease_name, 0, '{}', '{}') ON CONFLICT DO NOTHING;
    SELECT * INTO v_calls FROM leasehold.scheduled_calls WHERE lease_name = p_lease_name FOR UPDATE;
  END IF;
  RETURN v_calls;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_scheduled_calls(text) FROM PUBLIC;
