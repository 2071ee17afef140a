-- List the active streams of these targets as one holder sees them: whether each is its own, whether it may be taken
-- now (see claim_streams), when it was last held or first due, the holder's fair share of the target, and whether
-- the clock was set back since its lease was granted. The function locks nothing; whoever takes a stream checks again
-- under the lock.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.stream_candidates(p_holder_id text, p_targets text[])
RETURNS TABLE (
  target text, stream text, lease_name text, lease_epoch bigint, is_own boolean, is_free boolean,
  is_in_flight boolean, waiting_since timestamptz, share bigint, has_impossible_times boolean)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  WITH active AS MATERIALIZED (
    SELECT * FROM leasehold.active_streams(p_targets, 10000)
  ), shares AS MATERIALIZED (
    SELECT target, leasehold.stream_share(p_holder_id, target, count(*)) AS share FROM active GROUP BY target
  ), seen AS MATERIALIZED (
    SELECT a.*, l AS lease, l.holder_id, l.lease_epoch, clock_timestamp() AS seen_at,
           coalesce(l.expires_at, '-infinity') AS expires_at,
           coalesce(l.grace_expires_at, '-infinity') AS grace_expires_at,
           EXISTS (SELECT FROM leasehold.outbox_pending p
                    WHERE p.lease_name = a.lease_name AND p.begun_epoch IS NOT NULL) AS is_in_flight
      FROM active a LEFT JOIN leasehold.leases l USING (lease_name)
  )
  SELECT s.target, s.stream, s.lease_name, s.lease_epoch,
         coalesce(s.holder_id = p_holder_id AND s.expires_at > s.seen_at, false),
         s.expires_at <= s.seen_at AND (s.grace_expires_at <= s.seen_at OR NOT s.is_in_flight),
         s.is_in_flight, greatest(s.expires_at, s.head_due_at), shares.share,
         s.lease_epoch IS NOT NULL AND NOT leasehold.are_lease_times_possible(s.lease, s.seen_at)
    FROM seen s JOIN shares USING (target)
$$;
REVOKE ALL ON FUNCTION leasehold.stream_candidates(text, text[]) FROM PUBLIC;
