-- Return how many of a target's streams are one holder's fair share: its streams divided by the live instances that
-- serve the target, this one included. The first instances get the remainder, in an order that differs from target
-- to target. All shares together are exactly the streams.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.stream_share(p_holder_id text, p_target text, p_streams bigint)
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT p_streams / count(*)
         + CASE WHEN (count(*) FILTER (WHERE peer.instance_id < p_holder_id) + abs(hashtext(p_target)::bigint)) % count(*)
                     < p_streams % count(*) THEN 1 ELSE 0 END
    FROM (SELECT i.instance_id FROM leasehold.instances i
           -- Seen in the future: the clock was set back, and a live instance will report again at once.
           WHERE i.alive_until > clock_timestamp() AND i.last_seen_at <= clock_timestamp() AND p_target = ANY (i.stream_targets)
           UNION SELECT p_holder_id) AS peer
$$;
REVOKE ALL ON FUNCTION leasehold.stream_share(text, text, bigint) FROM PUBLIC;
