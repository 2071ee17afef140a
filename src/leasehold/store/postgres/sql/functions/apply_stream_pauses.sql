-- Bring the leases of streams up to date with their reasons to stand still (stream_pauses): paused_until is the latest end.
-- Reasons that are over are deleted.
-- Locks: the lease rows, already locked by the caller, at least FOR NO KEY UPDATE; their reasons. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.apply_stream_pauses(p_lease_names text[], p_now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  DELETE FROM leasehold.stream_pauses s WHERE s.lease_name = ANY (p_lease_names) AND s.paused_until <= p_now;
  UPDATE leasehold.leases l
     SET paused_since = standing.paused_since, paused_until = standing.paused_until
    FROM unnest(p_lease_names) AS asked (lease_name)
   CROSS JOIN LATERAL (
     SELECT min(s.paused_since) AS paused_since, max(s.paused_until) AS paused_until
       FROM leasehold.stream_pauses s WHERE s.lease_name = asked.lease_name) AS standing
   WHERE l.lease_name = asked.lease_name
     AND (l.paused_since, l.paused_until) IS DISTINCT FROM (standing.paused_since, standing.paused_until);
END
$$;
REVOKE ALL ON FUNCTION leasehold.apply_stream_pauses(text[], timestamptz) FROM PUBLIC;
