-- Claim streams that have unfinished work and no holder, up to this holder's fair share of each target: its streams
-- divided by the live instances that serve it; the first of them get the remainder. A stream that nobody took
-- for a whole lease is claimed beyond the share, so that no work stands still for the sake of fairness.
-- Returns the new claims only; renew_streams keeps the others.
-- A stream has two expiries. Before the first it belongs to its holder; between the two it may be taken if no
-- call is in flight; after the second always. A call in flight is then put in doubt. If the database's clock was set
-- back, a stream of a dead holder can be taken after one more lease (see repair_lease_times).
-- Locks: lease rows by name, SKIP LOCKED, so a stream whose holder is writing is left alone. Reads the clock after
-- that. Then begun rows by id.
-- Raises: 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.claim_streams(
  p_holder_id text, p_targets text[], p_lease_seconds double precision, p_grace_seconds double precision,
  p_streams_max integer
) RETURNS TABLE (
  lease_name text, target text, stream text, lease_epoch bigint, expires_at timestamptz,
  grace_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_wanted record;
  v_taken leasehold.leases;
  v_count integer := 0;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  PERFORM leasehold.require_between('p_lease_seconds', p_lease_seconds, 1, 86400);
  PERFORM leasehold.require_between('p_grace_seconds', p_grace_seconds, 0, 86400);
  PERFORM leasehold.require_between('p_streams_max', p_streams_max, 1, 10000);

  FOR v_wanted IN
    SELECT free.* FROM (
      SELECT j.*, count(*) FILTER (WHERE j.is_own) OVER (PARTITION BY j.target) AS held,
             -- Each holder prefers other streams, so that claimers seldom meet.
             row_number() OVER (PARTITION BY j.target, j.is_free
                                ORDER BY hashtext(j.lease_name || p_holder_id)) AS place
        FROM leasehold.stream_candidates(p_holder_id, p_targets) AS j) AS free
     WHERE NOT free.is_free AND free.has_impossible_times
        OR free.is_free
           AND (free.held + free.place <= free.share
                OR free.waiting_since <= v_now - make_interval(secs => p_lease_seconds))
     ORDER BY free.lease_name
  LOOP
    EXIT WHEN v_count >= p_streams_max;
    IF NOT v_wanted.is_free THEN
      PERFORM leasehold.repair_lease_times(v_wanted.lease_name);
      CONTINUE;
    END IF;
    INSERT INTO leasehold.leases
      VALUES (v_wanted.lease_name, p_holder_id, 0, v_now, v_now, '-infinity', '-infinity')
      ON CONFLICT DO NOTHING;
    PERFORM FROM leasehold.leases l WHERE l.lease_name = v_wanted.lease_name FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    v_taken := leasehold.take_lease(v_wanted.lease_name, p_holder_id, p_lease_seconds, p_grace_seconds);
    CONTINUE WHEN v_taken.lease_name IS NULL;
    v_count := v_count + 1;
    RETURN QUERY SELECT v_taken.lease_name, v_wanted.target, v_wanted.stream, v_taken.lease_epoch,
                        v_taken.expires_at, v_taken.grace_expires_at;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.claim_streams(text, text[], double precision, double precision, integer)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.claim_streams(text, text[], double precision, double precision, integer)
  TO leasehold_executor;
