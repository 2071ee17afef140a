-- The state of the queue in one row, as record_queue_counts last found it: reading it costs the same whatever the size
-- of the queue. seen_at is when the oldest part was counted; it is NULL while some part was never counted, and the
-- counts are then too low. Only oldest_xmin_age is of this moment: how many transactions ago the oldest began that may
-- still need rows as they were then. Until it ends, no row that died since can be removed. Only some logins may see
-- whose it is; every login may see how old it is. streams_blocked has the number of streams that wait until a person resumes
-- them, by target, for up to 1,000 targets.
CREATE OR REPLACE VIEW leasehold.supervisor AS
SELECT coalesce(sum(c.pending), 0)::bigint AS pending,
       coalesce(sum(c.due), 0)::bigint AS due,
       coalesce(sum(c.leased), 0)::bigint AS leased,
       coalesce(sum(c.expired_leases), 0)::bigint AS expired_leases,
       coalesce(sum(c.due_unleased), 0)::bigint AS due_unleased,
       coalesce(sum(c.pending - c.held) FILTER (WHERE c.last_state = 'IN_DOUBT'), 0)::bigint AS in_doubt,
       coalesce(sum(c.held), 0)::bigint AS held,
       coalesce(sum(c.pending - c.held) FILTER (WHERE c.last_state = 'SUBMITTED'), 0)::bigint AS confirming,
       extract(epoch FROM clock_timestamp() - min(c.oldest_created_at))::double precision AS oldest_pending_seconds,
       (SELECT coalesce(jsonb_object_agg(s.last_state, s.pending), '{}')
          FROM (SELECT last_state, sum(pending)::bigint AS pending FROM leasehold.queue_counts
                 WHERE pending > 0 GROUP BY 1) AS s) AS pending_by_last_state,
       (SELECT coalesce(jsonb_object_agg(h.attempt_count, h.pending), '{}')
          FROM (SELECT attempt_count, sum(pending)::bigint AS pending FROM leasehold.queue_counts
                 WHERE pending > 0 GROUP BY 1) AS h) AS pending_by_attempts,
       extract(epoch FROM clock_timestamp() - min(c.oldest_doubt_at))::double precision AS oldest_in_doubt_seconds,
       (SELECT max(age(held.xid))::bigint
          FROM (-- What has written, in every database; prepared transactions are among them.
                SELECT pg_snapshot_xmin(pg_current_snapshot())::xid
                 UNION ALL
                -- What only reads, in this database; and standbys that report back, which belong to none.
                SELECT backend_xmin FROM pg_stat_activity WHERE datname = current_database() OR datname IS NULL
                 UNION ALL
                SELECT unnest(ARRAY[xmin, catalog_xmin]) FROM pg_replication_slots) AS held (xid)) AS oldest_xmin_age,
       CASE WHEN count(DISTINCT c.segment_no) >= (array_agg(c.segments ORDER BY c.seen_at DESC))[1]
            THEN min(c.seen_at) END AS seen_at,
       CASE WHEN count(DISTINCT c.segment_no) >= (array_agg(c.segments ORDER BY c.seen_at DESC))[1]
            THEN extract(epoch FROM clock_timestamp() - min(c.seen_at))::double precision END AS age_seconds,
       (SELECT coalesce(jsonb_object_agg(b.target, b.blocked), '{}')
          FROM (SELECT target, blocked FROM leasehold.blocked_counts ORDER BY blocked DESC, target LIMIT 1000) AS b)
         AS streams_blocked,
       coalesce(sum(c.deferred), 0)::bigint AS deferred,
       extract(epoch FROM clock_timestamp() - min(c.oldest_deferred_since))::double precision AS oldest_deferred_seconds
  FROM leasehold.queue_counts c;
COMMENT ON VIEW leasehold.supervisor IS 'The state of the queue in one row, as it was last counted.';
REVOKE ALL ON leasehold.supervisor FROM PUBLIC;
GRANT SELECT ON leasehold.supervisor
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
