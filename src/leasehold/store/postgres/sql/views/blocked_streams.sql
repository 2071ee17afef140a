-- Streams that do not go on by themselves, or not yet: paused ones, and those whose head was tried or deferred and has not ended. state:
-- paused (until paused_until; infinity: until a person resumes it), held (a person must resolve the head), in_doubt,
-- confirming, deferred (its target refuses calls), or retrying. Rows that await their confirmation in a pipeline block nothing; the head is the first other one.
-- reason is what the gateway answered ("500 boom"); without an answer, our reason for the last attempt (timeout, lease_expired).
-- waiting counts the intents behind the head that were not submitted, up to 1,000; submitted those in the pipeline.
-- A stream may be paused for several reasons (stream_pauses), and goes on when the last one has ended. pauses has the first 20 as JSON:
-- paused_by, paused_for, paused_since, paused_until (null: until a person resumes it) and note; failed intents first, then
-- people, each in the order of time. paused_by, paused_for and reason are those of the first, paused_until is the latest end. paused_for
-- is an intent whose failure paused the stream. It is finished, so it is never the head: the head is what comes next.
-- For one stream it reads by index. To read many, use read_blocked_streams, which reads a page.
CREATE OR REPLACE VIEW leasehold.blocked_streams AS
SELECT blocked.target, blocked.stream, head.intent_id AS head,
       CASE WHEN blocked.paused_until > clock_timestamp() THEN 'paused'
            WHEN head.due_at = 'infinity' THEN 'held'
            WHEN head.last_state = 'IN_DOUBT' THEN 'in_doubt'
            WHEN head.last_state = 'SUBMITTED' THEN 'confirming'
            WHEN head.deferred_since IS NOT NULL THEN 'deferred'
            ELSE 'retrying' END AS state,
       CASE WHEN blocked.paused_until > clock_timestamp() THEN standing.pauses -> 0 ->> 'note'
            WHEN head.deferred_since IS NOT NULL
            THEN left(concat_ws(' ', head.deferred_code, head.deferred_reason, head.deferred_detail), 200)
            ELSE latest.reason END AS reason,
       CASE WHEN blocked.paused_until > clock_timestamp() THEN standing.paused_since
            ELSE coalesce(head.first_tried_at, head.deferred_since, head.last_modified_at) END AS blocked_since,
       blocked.paused_until, standing.pauses -> 0 ->> 'paused_by' AS paused_by,
       (standing.pauses -> 0 ->> 'paused_for')::uuid AS paused_for,
       head.attempt_count AS attempts, head.due_at,
       (SELECT count(*) FROM (
          SELECT FROM leasehold.outbox_pending p
           WHERE p.scope = 'stream' AND p.target = blocked.target AND p.stream = blocked.stream
             AND p.stream_seq > head.stream_seq AND NOT p.awaits_confirmation LIMIT 1000) AS behind) AS waiting,
       (SELECT count(*) FROM leasehold.outbox_pending p
         WHERE p.scope = 'stream' AND p.target = blocked.target AND p.stream = blocked.stream
           AND p.awaits_confirmation) AS submitted,
       coalesce(standing.pauses, '[]') AS pauses
  FROM (SELECT l.target, l.stream, l.lease_name, l.paused_until
          FROM leasehold.leases l WHERE l.paused_since IS NOT NULL AND l.paused_until > clock_timestamp()
         UNION ALL
        SELECT p.target, p.stream, NULL, NULL
          FROM leasehold.outbox_pending p
         WHERE p.scope = 'stream' AND (p.last_state IS NOT NULL OR p.deferred_since IS NOT NULL)
           AND NOT p.awaits_confirmation
           AND (SELECT true FROM leasehold.outbox_pending earlier
                 WHERE earlier.scope = 'stream' AND earlier.target = p.target AND earlier.stream = p.stream
                   AND earlier.stream_seq < p.stream_seq AND NOT earlier.awaits_confirmation
                 ORDER BY earlier.stream_seq LIMIT 1) IS NULL
           AND (SELECT true FROM leasehold.leases l
                 WHERE l.lease_name = p.lease_name AND l.paused_since IS NOT NULL
                   AND l.paused_until > clock_timestamp()) IS NULL) AS blocked
  LEFT JOIN LATERAL (
    SELECT p.intent_id, p.stream_seq, p.due_at, p.last_state, p.first_tried_at, p.last_modified_at, p.attempt_count,
           p.deferred_since, p.deferred_reason, p.deferred_code, p.deferred_detail
      FROM leasehold.outbox_pending p
     WHERE p.scope = 'stream' AND p.target = blocked.target AND p.stream = blocked.stream
       AND NOT p.awaits_confirmation
     ORDER BY p.stream_seq LIMIT 1) AS head ON true
  LEFT JOIN LATERAL (
    SELECT CASE WHEN a.code IS NULL THEN coalesce(a.reason, a.detail)
                ELSE left(concat_ws(' ', a.code, coalesce(a.detail, a.reason)), 200) END AS reason
      FROM leasehold.outbox_attempts a
     WHERE a.intent_id = head.intent_id AND a.attempt_no = head.attempt_count) AS latest ON true
  LEFT JOIN LATERAL (
    SELECT min(one.paused_since) AS paused_since,
           jsonb_agg(jsonb_build_object(
             'paused_by', CASE one.kind WHEN 'failure' THEN 'on_failure' ELSE one.name END, 'paused_for', one.paused_for,
             'paused_since', one.paused_since, 'paused_until', nullif(one.paused_until, 'infinity'),
             'note', coalesce(one.note, failed.reason)) ORDER BY one.kind, one.paused_since, one.name) AS pauses
      FROM (SELECT s.*, CASE s.kind WHEN 'failure' THEN s.name::uuid END AS paused_for FROM leasehold.stream_pauses s
             WHERE s.lease_name = blocked.lease_name AND s.paused_until > clock_timestamp()
             ORDER BY s.kind, s.paused_since, s.name LIMIT 20) AS one
      LEFT JOIN LATERAL (
        SELECT CASE WHEN a.code IS NULL THEN coalesce(a.reason, a.detail)
                    ELSE left(concat_ws(' ', a.code, coalesce(a.detail, a.reason)), 200) END AS reason
          FROM leasehold.outbox_attempts a
         WHERE a.intent_id = one.paused_for AND a.state = 'FAILED' AND one.note IS NULL LIMIT 1) AS failed ON true) AS standing ON true;
COMMENT ON VIEW leasehold.blocked_streams IS 'Streams that are paused, or whose head was tried and has not ended.';
REVOKE ALL ON leasehold.blocked_streams FROM PUBLIC;
GRANT SELECT ON leasehold.blocked_streams
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
