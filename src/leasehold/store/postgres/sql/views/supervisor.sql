-- One row for whoever watches over the queue. Counts the hot table (its cost grows with what is
-- unfinished, not with history) and the ledger's last hour. How long the oldest doubt has lasted is
-- looked up on the ledger, for at most a thousand doubts: those of the oldest intents.
CREATE OR REPLACE VIEW leasehold.supervisor AS
WITH clock AS MATERIALIZED (
  SELECT clock_timestamp() AS now
), pending AS MATERIALIZED (
  SELECT count(*) AS pending,
         count(*) FILTER (WHERE due_at <= now) AS due,
         count(*) FILTER (WHERE claimed_by IS NOT NULL) AS leased,
         count(*) FILTER (WHERE lease_expires_at <= now) AS expired_leases,
         count(*) FILTER (WHERE due_at <= now AND claimed_by IS NULL) AS due_unleased,
         count(*) FILTER (WHERE last_state = 'IN_DOUBT' AND due_at < 'infinity') AS in_doubt,
         count(*) FILTER (WHERE due_at = 'infinity') AS held,
         count(*) FILTER (WHERE last_state = 'SUBMITTED' AND due_at < 'infinity') AS confirming,
         min(first_intent.created_at) AS oldest_created_at
    FROM leasehold.outbox_pending CROSS JOIN clock
   CROSS JOIN LATERAL (
     SELECT to_timestamp(('x' || lpad(left(replace(intent_id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0)
            AS created_at) AS first_intent
), pending_states AS MATERIALIZED (
  SELECT jsonb_object_agg(state, rows) AS pending_by_last_state
    FROM (SELECT coalesce(last_state, 'NEW') AS state, count(*) AS rows
            FROM leasehold.outbox_pending GROUP BY 1) AS s
), histogram AS MATERIALIZED (
  SELECT jsonb_object_agg(attempt_count, rows) AS pending_by_attempts
    FROM (SELECT attempt_count, count(*) AS rows FROM leasehold.outbox_pending GROUP BY 1) AS h
), doubt AS MATERIALIZED (
  SELECT min(began.at) AS oldest_began_at
    FROM (SELECT intent_id FROM leasehold.outbox_pending
           WHERE last_state = 'IN_DOUBT' AND due_at < 'infinity' ORDER BY intent_id LIMIT 1000) AS doubted
   CROSS JOIN LATERAL (
     -- A doubt stays one while the gateway is asked about it in vain: each time is a row of its own.
     SELECT min(a.finished_at) AS at FROM leasehold.outbox_attempts a
      WHERE a.intent_id = doubted.intent_id
        AND a.attempt_no > coalesce((SELECT max(other.attempt_no) FROM leasehold.outbox_attempts other
                                      WHERE other.intent_id = doubted.intent_id AND other.state <> 'IN_DOUBT'), 0)
   ) AS began
), horizon AS MATERIALIZED (
  -- How many transactions ago the oldest began that may still need rows as they were then: until it ends, no row
  -- that died since can be removed, and every claim has to step over those of the queue. Whose it is, only some
  -- logins may see; how old it is, every login.
  SELECT max(age(held.xid))::bigint AS oldest_xmin_age
    FROM (-- What has written, in every database; prepared transactions are among them.
          SELECT pg_snapshot_xmin(pg_current_snapshot())::xid
           UNION ALL
          -- What only reads, in this database; and standbys that report back, which belong to none.
          SELECT backend_xmin FROM pg_stat_activity WHERE datname = current_database() OR datname IS NULL
           UNION ALL
          SELECT unnest(ARRAY[xmin, catalog_xmin]) FROM pg_replication_slots) AS held (xid)
), ledger AS MATERIALIZED (
  SELECT coalesce(jsonb_object_agg(state, rows), '{}') AS attempts_by_state_last_hour,
         coalesce(sum(rows) FILTER (WHERE state = 'DISPATCHED'), 0)::bigint AS dispatched_last_hour,
         coalesce(sum(rows) FILTER (WHERE state = 'FAILED'), 0)::bigint AS failed_last_hour
    FROM (SELECT a.state, count(*) AS rows FROM leasehold.outbox_attempts a
           WHERE a.finished_at > (SELECT now - interval '1 hour' FROM clock) GROUP BY 1) AS l
)
SELECT pending.pending, pending.due, pending.leased, pending.expired_leases, pending.due_unleased,
       pending.in_doubt, pending.held, pending.confirming,
       extract(epoch FROM clock.now - pending.oldest_created_at)::double precision AS oldest_pending_seconds,
       coalesce(pending_states.pending_by_last_state, '{}') AS pending_by_last_state,
       coalesce(histogram.pending_by_attempts, '{}') AS pending_by_attempts,
       ledger.attempts_by_state_last_hour, ledger.dispatched_last_hour, ledger.failed_last_hour,
       clock.now AS seen_at,
       extract(epoch FROM clock.now - doubt.oldest_began_at)::double precision AS oldest_in_doubt_seconds,
       horizon.oldest_xmin_age
  FROM clock, pending, pending_states, histogram, ledger, doubt, horizon;
COMMENT ON VIEW leasehold.supervisor IS 'The state of the queue in one row.';
REVOKE ALL ON leasehold.supervisor FROM PUBLIC;
GRANT SELECT ON leasehold.supervisor
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
