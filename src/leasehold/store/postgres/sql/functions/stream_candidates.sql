-- The active streams of these targets as one holder sees them: whether each is its own, whether it may
-- be taken now (the two-phase expiry), when it was last held or first due, and the holder's fair share of
-- the target. Locks nothing: who takes a stream looks again under its lock.
CREATE OR REPLACE FUNCTION leasehold.stream_candidates(p_holder_id text, p_targets text[])
RETURNS TABLE (
  target text, stream text, lease_name text, lease_epoch bigint, is_own boolean, is_free boolean,
  is_in_flight boolean, waiting_since timestamptz, share bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  WITH active AS MATERIALIZED (
    SELECT * FROM leasehold.active_streams(p_targets, 10000)
  ), shares AS MATERIALIZED (
    SELECT target, leasehold.stream_share(p_holder_id, target, count(*)) AS share FROM active GROUP BY target
  ), seen AS MATERIALIZED (
    SELECT a.*, l.holder_id, l.lease_epoch, clock_timestamp() AS seen_at,
           coalesce(l.expires_at, '-infinity') AS expires_at,
           coalesce(l.grace_expires_at, '-infinity') AS grace_expires_at,
           EXISTS (SELECT FROM leasehold.outbox_pending p
                    WHERE p.lease_name = a.lease_name AND p.begun_epoch IS NOT NULL) AS is_in_flight
      FROM active a LEFT JOIN leasehold.leases l USING (lease_name)
  )
  SELECT s.target, s.stream, s.lease_name, s.lease_epoch,
         coalesce(s.holder_id = p_holder_id AND s.expires_at > s.seen_at, false),
         s.expires_at <= s.seen_at AND (s.grace_expires_at <= s.seen_at OR NOT s.is_in_flight),
         s.is_in_flight, greatest(s.expires_at, s.head_due_at), shares.share
    FROM seen s JOIN shares USING (target)
$$;
REVOKE ALL ON FUNCTION leasehold.stream_candidates(text, text[]) FROM PUBLIC;
