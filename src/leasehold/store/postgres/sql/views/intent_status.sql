-- An intent as its user sees it. The status is derived, never stored.
--   unfinished: pending, in_doubt, held (waits for a person), confirming
--   finished: accepted, rejected, exhausted (see reason), cancelled
-- reason, code and detail are those of the outcome; of an unfinished intent, those of its last attempt, or why its calls have
-- been deferred (since deferred_since).
CREATE OR REPLACE VIEW leasehold.intent_status AS
SELECT i.intent_id, i.target, i.stream, i.stream_seq, i.idempotency_key, i.contract_version,
       CASE WHEN p.intent_id IS NULL THEN leasehold.final_status(final.state, final.reason)
            WHEN p.due_at = 'infinity' THEN 'held'
            WHEN p.last_state = 'IN_DOUBT' THEN 'in_doubt'
            WHEN p.last_state = 'SUBMITTED' THEN 'confirming'
            ELSE 'pending' END AS status,
       coalesce(final.reason, p.deferred_reason, latest.reason) AS reason, coalesce(p.attempt_count, final.attempt_no) AS attempts,
       coalesce(final.reference, p.reference) AS reference,
       CASE WHEN p.deferred_since IS NULL THEN coalesce(final.code, latest.code) ELSE p.deferred_code END AS code,
       CASE WHEN p.deferred_since IS NULL THEN coalesce(final.detail, latest.detail) ELSE p.deferred_detail END AS detail,
       p.priority, p.due_at, p.claimed_by, p.lease_expires_at, p.begun_at,
       i.created_at, i.deadline_at, final.finished_at, i.redrive_of,
       p.deferred_since
  FROM leasehold.intents i
  LEFT JOIN leasehold.outbox_pending p ON p.intent_id = i.intent_id
  LEFT JOIN LATERAL (
    SELECT a.attempt_no, a.state, a.reason, a.reference, a.code, a.detail, a.finished_at
      FROM leasehold.outbox_attempts a
     WHERE p.intent_id IS NULL AND a.intent_id = i.intent_id
       AND a.state IN ('DISPATCHED', 'FAILED', 'CANCELLED')) AS final ON true
  LEFT JOIN LATERAL (
    SELECT a.reason, a.code, a.detail FROM leasehold.outbox_attempts a
     WHERE a.intent_id = p.intent_id AND a.attempt_no = p.attempt_count) AS latest ON true;
COMMENT ON VIEW leasehold.intent_status IS 'Each intent with its derived status.';
REVOKE ALL ON leasehold.intent_status FROM PUBLIC;
GRANT SELECT ON leasehold.intent_status
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
