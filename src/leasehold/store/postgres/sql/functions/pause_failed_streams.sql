-- Pause the streams in which an intent is about to end as FAILED, as its contract says (on_failure): block until a person
-- resumes the stream, block_for some seconds, or continue. Each of them is a reason of its own (stream_pauses), beside those
-- that stand already. What an operator decides pauses nothing.
-- The lists have one entry per outcome: the place of its pending row, its refusal, and the state and reason of its
-- ledger row. p_refusals may be NULL: nothing is refused. Returns the leases of the streams that have a row among them, NULL
-- for none.
-- Locks: the lease rows, which the caller has locked; the reasons of their pauses. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.pause_failed_streams(
  p_places tid[], p_refusals text[], p_states text[], p_reasons text[], p_now timestamptz
) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_streams text[];
  v_failed integer;
BEGIN
  -- Not WHERE scope = 'stream': if the table was small when this was planned, all rows of a partial index would be read.
  SELECT array_agg(DISTINCT p.lease_name) FILTER (WHERE p.scope = 'stream') INTO v_streams
    FROM leasehold.outbox_pending p WHERE p.ctid = ANY (p_places);
  IF v_streams IS NOT NULL AND 'FAILED' = ANY (p_states) THEN
    INSERT INTO leasehold.stream_pauses AS s (lease_name, kind, name, paused_since, paused_until, note)
    SELECT p.lease_name, 'failure', p.intent_id::text, p_now,
           CASE c.on_failure WHEN 'block' THEN 'infinity' ELSE p_now + make_interval(secs => c.block_seconds) END, o.reason
      FROM unnest(p_places, p_refusals, p_states, p_reasons) AS o (place, refusal, state, reason)
      JOIN leasehold.outbox_pending p ON p.ctid = o.place
      JOIN leasehold.contracts c ON c.target = p.target AND c.version = p.contract_version
     WHERE o.state = 'FAILED' AND o.refusal IS NULL AND c.on_failure <> 'continue'
       AND o.reason IS DISTINCT FROM 'resolved_by_operator' AND p.scope = 'stream';
    GET DIAGNOSTICS v_failed = ROW_COUNT;
    IF v_failed > 0 THEN
      PERFORM leasehold.apply_stream_pauses(v_streams, p_now);
    END IF;
  END IF;
  RETURN v_streams;
END
$$;
REVOKE ALL ON FUNCTION leasehold.pause_failed_streams(tid[], text[], text[], text[], timestamptz) FROM PUBLIC;
