-- The stream leases that a holder should release because others have come to share the work: those
-- beyond its fair share, without a call in flight. Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.surplus_streams(p_holder_id text, p_targets text[])
RETURNS TABLE (lease_name text, lease_epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  RETURN QUERY
  SELECT own.lease_name, own.lease_epoch
    FROM (SELECT j.*, row_number() OVER (PARTITION BY j.target ORDER BY j.is_in_flight DESC, j.lease_name) AS place
            FROM leasehold.stream_candidates(p_holder_id, p_targets) AS j WHERE j.is_own) AS own
   WHERE own.place > own.share AND NOT own.is_in_flight;
END
$$;
REVOKE ALL ON FUNCTION leasehold.surplus_streams(text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.surplus_streams(text, text[]) TO leasehold_executor;
