-- How many of a target's streams are one holder's fair share: streams divided by the live instances
-- that serve the target (this one always counts), the remainder going to the first of them in an order
-- that differs from target to target. All shares together are exactly the streams. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.stream_share(p_holder_id text, p_target text, p_streams bigint)
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT p_streams / count(*)
         + CASE WHEN (count(*) FILTER (WHERE peer.instance_id < p_holder_id) + abs(hashtext(p_target)::bigint)) % count(*)
                     < p_streams % count(*) THEN 1 ELSE 0 END
    FROM (SELECT i.instance_id FROM leasehold.instances i
           WHERE i.alive_until > clock_timestamp() AND p_target = ANY (i.stream_targets)
           UNION SELECT p_holder_id) AS peer
$$;
REVOKE ALL ON FUNCTION leasehold.stream_share(text, text, bigint) FROM PUBLIC;
