-- Pause the streams in which these intents have just ended as FAILED, as their contracts say (on_failure): block until a person
-- resumes the stream, block_for some seconds, or continue. Each of them is a reason of its own (stream_pauses), beside those
-- that stand already. What an operator decides pauses nothing. Intents without a stream are passed over.
-- p_reasons are the reasons on their ledger rows.
-- Locks: the lease rows, which the caller has locked; the reasons of their pauses. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.pause_failed_streams(p_intent_ids uuid[], p_reasons text[], p_now timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_paused text[];
BEGIN
  WITH paused AS (
    INSERT INTO leasehold.stream_pauses (lease_name, kind, name, paused_since, paused_until, note)
    SELECT leasehold.stream_lease_name(i.target, i.stream), 'failure', i.intent_id::text, p_now,
           CASE c.on_failure WHEN 'block' THEN 'infinity' ELSE p_now + make_interval(secs => c.block_seconds) END, failed.reason
      FROM unnest(p_intent_ids, p_reasons) AS failed (intent_id, reason)
      JOIN leasehold.intents i ON i.intent_id = failed.intent_id
      JOIN leasehold.contracts c ON c.target = i.target AND c.version = i.contract_version
     WHERE c.scope = 'stream' AND c.on_failure <> 'continue' AND failed.reason IS DISTINCT FROM 'resolved_by_operator'
    RETURNING lease_name
  )
  SELECT array_agg(DISTINCT paused.lease_name) INTO v_paused FROM paused;
  IF v_paused IS NOT NULL THEN
    PERFORM leasehold.apply_stream_pauses(v_paused, p_now);
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.pause_failed_streams(uuid[], text[], timestamptz) FROM PUBLIC;
