-- Return how many streams of each target this instance should keep, if it should hand over others: it holds more than its
-- share, and some other live instance has free slots and found no stream of the target. The share is the number of streams that
-- all live instances hold, divided by their number. Targets without a surplus are left out.
-- Everything comes from what the instances reported (renew_instance), so the cost does not depend on the number of streams.
-- Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.surplus_streams(p_instance_id text) RETURNS TABLE (target text, kept integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_name('p_instance_id', p_instance_id, 128);
  RETURN QUERY
  SELECT own.target, greatest(own.held - total.wanted, ceil(total.held / total.instances::numeric))::integer
    FROM (SELECT r.target, r.held FROM leasehold.instances i
           CROSS JOIN LATERAL unnest(i.stream_targets, i.streams_held) AS r (target, held)
           WHERE i.instance_id = p_instance_id) AS own
   CROSS JOIN LATERAL (
     SELECT sum(r.held) AS held, count(*) AS instances,
            sum(r.wanted) FILTER (WHERE i.instance_id <> p_instance_id) AS wanted
       FROM leasehold.instances i
      CROSS JOIN LATERAL unnest(i.stream_targets, i.streams_held, i.streams_wanted) AS r (target, held, wanted)
      WHERE r.target = own.target
        AND (i.alive_until > clock_timestamp() AND i.last_seen_at <= clock_timestamp() OR i.instance_id = p_instance_id)
   ) AS total
   WHERE own.held > ceil(total.held / total.instances::numeric) AND total.wanted > 0;
END
$$;
REVOKE ALL ON FUNCTION leasehold.surplus_streams(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.surplus_streams(text) TO leasehold_executor;
