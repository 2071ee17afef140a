-- Give these streams to a holder, each with epoch + 1, if they may be taken now; see claim_streams. Calls in flight are put
-- in doubt. Returns the names of the leases that were taken.
-- p_rows are the claimable rows that led to the streams. One that is not the first of its stream loses the mark: it is
-- behind rows that await their confirmation, or its enqueuer could not see the head. So does one that awaits its confirmation.
-- advance_streams marks the row that leads to the stream next time.
-- A stream is not taken while somebody has locked a row of a call in flight, for that row could not be put in doubt. It goes to
-- the end of the line of expired streams, so that it does not hide the others.
-- Locks: the lease rows and p_rows, already locked by the caller. Reads the clock. Then the begun rows (lock_begun_rows), and
-- the reasons of pauses.
-- Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.take_streams(
  p_lease_names text[], p_rows uuid[], p_holder_id text, p_lease_seconds double precision,
  p_grace_seconds double precision
) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_free text[];
  v_expired text[];
  v_paused text[];  -- or with a pause that is over, to be forgotten
  v_locked text[];
  v_doubts leasehold.outcome[];
BEGIN
  -- A free stream has no call in flight: whoever freed it has looked.
  SELECT coalesce(array_agg(l.lease_name), '{}'),
         coalesce(array_agg(l.lease_name) FILTER (WHERE l.expires_at > '-infinity'), '{}'),
         coalesce(array_agg(l.lease_name) FILTER (WHERE l.paused_since IS NOT NULL), '{}')
    INTO v_free, v_expired, v_paused
    FROM leasehold.leases l
   WHERE l.lease_name = ANY (p_lease_names) AND l.expires_at <= v_now
     AND (l.grace_expires_at <= v_now OR NOT leasehold.is_stream_begun(l.target, l.stream));

  IF cardinality(v_expired) > 0 THEN
    v_locked := ARRAY(SELECT l.lease_name FROM leasehold.leases l
                       WHERE l.lease_name = ANY (v_expired) AND NOT leasehold.lock_begun_rows(l.target, l.stream));
    IF v_locked <> '{}' THEN
      v_free := ARRAY(SELECT name FROM unnest(v_free) AS name WHERE name NOT IN (SELECT unnest(v_locked)));
      v_expired := ARRAY(SELECT name FROM unnest(v_expired) AS name WHERE name NOT IN (SELECT unnest(v_locked)));
      v_paused := ARRAY(SELECT name FROM unnest(v_paused) AS name WHERE name NOT IN (SELECT unnest(v_locked)));
    END IF;
    SELECT array_agg(leasehold.taken_over_outcome(begun.intent_id, l.holder_id, l.lease_name, l.lease_epoch)
                     ORDER BY begun.intent_id)
      INTO v_doubts
      FROM leasehold.leases l
     CROSS JOIN LATERAL (
       SELECT p.intent_id, p.begun_at FROM leasehold.outbox_pending p
        WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream
        ORDER BY p.stream_seq LIMIT 200) AS begun
     WHERE l.lease_name = ANY (v_expired) AND begun.begun_at IS NOT NULL;
  END IF;
  UPDATE leasehold.leases l
     SET holder_id = p_holder_id, lease_epoch = l.lease_epoch + 1, acquired_at = v_now, renewed_at = v_now,
         expires_at = v_now + make_interval(secs => p_lease_seconds),
         grace_expires_at = v_now + make_interval(secs => p_lease_seconds + p_grace_seconds),
         lease_seconds = p_lease_seconds, grace_seconds = p_grace_seconds
   WHERE l.lease_name = ANY (v_free);
  IF cardinality(v_paused) > 0 THEN
    PERFORM leasehold.apply_stream_pauses(v_paused, v_now);
  END IF;
  IF v_doubts IS NOT NULL THEN
    PERFORM leasehold.append_attempts(v_doubts, v_now, 'none');
  END IF;

  UPDATE leasehold.outbox_pending p SET is_claimable = false
   WHERE p.intent_id = ANY (p_rows) AND p.is_claimable
     AND (p.last_state = 'SUBMITTED' OR (SELECT true FROM leasehold.outbox_pending earlier
           WHERE earlier.scope = 'stream' AND earlier.target = p.target AND earlier.stream = p.stream
             AND earlier.stream_seq < p.stream_seq LIMIT 1));
  RETURN v_free;
END
$$;
REVOKE ALL ON FUNCTION leasehold.take_streams(text[], uuid[], text, double precision, double precision) FROM PUBLIC;
