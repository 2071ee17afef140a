-- Find streams that are not free, but whose holder's time is over, and lock their lease rows: expired and without a call in
-- flight, or past the second expiry. Also those that were freed while an enqueuer's transaction was open. Returns the names
-- of their leases, of each target at most its limit.
-- An expiry further away than the lease was granted for means that the clock was set back. It is corrected
-- (repair_lease_times), and the stream is found when it has passed. Expiries within p_lease_seconds need no correction. Of the
-- others only the 100 furthest are looked at in each call, because instances with a longer lease time have many of them.
-- A stream past its second expiry is passed over while somebody has locked a row of a call in flight, for that row could not be
-- put in doubt (take_streams). Such streams do not use up the limits: of each target, up to 1000 of them are looked at beside.
-- The walk sees what was true before the lock; take_streams checks again.
-- Locks: the lease rows FOR UPDATE, SKIP LOCKED, then their begun rows (lock_begun_rows). Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_expired_streams(
  p_targets text[], p_target_limits integer[], p_limit integer, p_lease_seconds double precision
) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_names text[];
BEGIN
  PERFORM leasehold.repair_lease_times(impossible.lease_name)
     FROM unnest(p_targets) AS asked (target)
    CROSS JOIN LATERAL (
      SELECT furthest.lease_name
        FROM (SELECT l.lease_name, l AS lease FROM leasehold.leases l
               WHERE l.target = asked.target AND l.stream IS NOT NULL AND l.expires_at > '-infinity'
                 AND l.expires_at > v_now + make_interval(secs => p_lease_seconds)
               ORDER BY l.expires_at DESC
               LIMIT 100) AS furthest
       WHERE NOT leasehold.are_lease_times_possible(furthest.lease, v_now)) AS impossible;

  WITH expired AS MATERIALIZED (
    SELECT found.lease_name
      FROM unnest(p_targets, p_target_limits) AS asked (target, target_limit)
     CROSS JOIN LATERAL (
       SELECT over.lease_name
         FROM (SELECT l.lease_name, l.target, l.stream, l.grace_expires_at FROM leasehold.leases l
                WHERE l.target = asked.target AND l.stream IS NOT NULL AND l.expires_at > '-infinity' AND l.expires_at <= v_now
                  AND (l.grace_expires_at <= v_now OR NOT leasehold.is_stream_begun(l.target, l.stream))
                ORDER BY l.expires_at
                LIMIT coalesce(asked.target_limit, p_limit) + 1000
                  FOR UPDATE SKIP LOCKED) AS over
        WHERE over.grace_expires_at > v_now OR leasehold.lock_begun_rows(over.target, over.stream)
        LIMIT coalesce(asked.target_limit, p_limit)) AS found
     LIMIT p_limit
  )
  SELECT coalesce(array_agg(expired.lease_name), '{}') INTO v_names FROM expired;
  RETURN v_names;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_expired_streams(text[], integer[], integer, double precision) FROM PUBLIC;
