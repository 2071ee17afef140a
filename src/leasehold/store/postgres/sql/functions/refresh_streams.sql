-- Look again at streams that this holder has, and return what can be done next in each, as claim_streams does: for those
-- that had nothing visible (recheck), for those whose wait is over, and for those that others have changed.
-- A stream that is lost has one row with the state lease_lost. With p_free_idle, streams without due work are freed.
-- Locks: the lease rows by name, FOR NO KEY UPDATE. Reads the clock after that. Then as advance_streams.
-- Raises: P7006; 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.refresh_streams(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_free_idle boolean DEFAULT true,
  p_begin boolean DEFAULT false
) RETURNS SETOF leasehold.stream_work
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_held text[];
  v_token_floor bigint;
BEGIN
  IF num_nulls(p_free_idle, p_begin) > 0 THEN
    RAISE EXCEPTION 'p_free_idle and p_begin must be true or false' USING ERRCODE = '22023';
  END IF;
  v_token_floor := leasehold.require_generation();
  v_held := leasehold.lock_held_streams(p_holder_id, p_lease_names, p_lease_epochs, p_to_begin => false);
  RETURN QUERY SELECT * FROM leasehold.advance_streams(v_held, NULL, p_free_idle, p_begin, v_token_floor);
  RETURN QUERY SELECT * FROM leasehold.lost_streams(p_lease_names, p_lease_epochs, v_held);
END
$$;
REVOKE ALL ON FUNCTION leasehold.refresh_streams(text, text[], bigint[], boolean, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.refresh_streams(text, text[], bigint[], boolean, boolean) TO leasehold_executor;
