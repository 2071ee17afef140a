-- Pause the streams in which an intent is about to end as FAILED, as its contract says (on_failure): block until a person
-- resumes the stream, block_for some seconds, or continue; if several end, the longest pause counts. What an operator decides
-- pauses nothing.
-- The lists have one entry per outcome: the place of its pending row, its refusal, and the state and reason of its
-- ledger row. p_refusals may be NULL: nothing is refused. Returns the leases of the streams that have a row among them, NULL
-- for none.
-- Locks: the lease rows, which the caller has locked. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.pause_failed_streams(
  p_places tid[], p_refusals text[], p_states text[], p_reasons text[], p_now timestamptz
) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_streams text[];
BEGIN
  -- Not WHERE scope = 'stream': if the table was small when this was planned, all rows of a partial index would be read.
  SELECT array_agg(DISTINCT p.lease_name) FILTER (WHERE p.scope = 'stream') INTO v_streams
    FROM leasehold.outbox_pending p WHERE p.ctid = ANY (p_places);
  IF v_streams IS NOT NULL AND 'FAILED' = ANY (p_states) THEN
    UPDATE leasehold.leases l
       SET paused_since = p_now, paused_until = failed.blocked_until, paused_by = 'on_failure',
           pause_note = failed.reason, paused_for = failed.intent_id
      FROM (SELECT DISTINCT ON (p.lease_name) p.lease_name, p.intent_id, o.reason,
                   CASE c.on_failure WHEN 'block' THEN 'infinity'
                                     ELSE p_now + make_interval(secs => c.block_seconds) END AS blocked_until
              FROM unnest(p_places, p_refusals, p_states, p_reasons) AS o (place, refusal, state, reason)
              JOIN leasehold.outbox_pending p ON p.ctid = o.place
              JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
             WHERE o.state = 'FAILED' AND o.refusal IS NULL AND c.on_failure <> 'continue'
               AND o.reason IS DISTINCT FROM 'resolved_by_operator'
             ORDER BY p.lease_name, blocked_until DESC, p.stream_seq) AS failed
     WHERE l.lease_name = failed.lease_name AND l.stream IS NOT NULL AND (l.paused_until IS NULL OR l.paused_until < failed.blocked_until);
  END IF;
  RETURN v_streams;
END
$$;
REVOKE ALL ON FUNCTION leasehold.pause_failed_streams(tid[], text[], text[], text[], timestamptz) FROM PUBLIC;
