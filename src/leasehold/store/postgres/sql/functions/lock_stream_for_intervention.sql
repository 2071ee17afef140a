-- Lock a stream for an intervention and return its lease row; NULL columns if there is no such stream.
-- Locks: the lease row FOR NO KEY UPDATE. It waits for its holder's write, never for an enqueuer.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.lock_stream_for_intervention(
  p_target text, p_stream text, p_operator text, p_note text
) RETURNS leasehold.leases
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease leasehold.leases;
BEGIN
  PERFORM leasehold.require_intervention('00000000-0000-0000-0000-000000000000', p_operator, p_note);
  PERFORM leasehold.require_name('p_target', p_target, 64);
  PERFORM leasehold.require_name('p_stream', p_stream, 255);
  SELECT * INTO v_lease FROM leasehold.leases
   WHERE lease_name = leasehold.stream_lease_name(p_target, p_stream) AND stream IS NOT NULL
     FOR NO KEY UPDATE;
  RETURN v_lease;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_stream_for_intervention(text, text, text, text) FROM PUBLIC;
