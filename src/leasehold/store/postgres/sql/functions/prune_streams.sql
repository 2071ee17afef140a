-- Delete streams that are empty and that nobody has worked on since p_idle_before: their rows in streams and leases. Only streams
-- without an unfinished intent, that nobody holds and that are not paused. On its way it forgets pauses for a time that are
-- over, which readers of blocked streams would pass over: a claim does so too, but an empty stream is not claimed. Looks at up to p_batch_size streams after the lease
-- p_after, in the order of their names, so a call costs the same whatever the number of streams. Returns how many were deleted
-- and where to go on; NULL: that was the last stream.
-- Neither an epoch nor a sequence number goes back if a stream is used again: the floors of its target are raised first, and
-- new streams start there.
-- Locks: the leases of pauses that are over; the rows of the targets in stream_floors, then the rows of the streams and their
-- leases; all SKIP LOCKED, so it waits for nobody.
-- Raises: 22023 if p_idle_before is less than a minute ago.
CREATE OR REPLACE FUNCTION leasehold.prune_streams(
  p_idle_before timestamptz, p_batch_size integer, p_after text DEFAULT NULL
) RETURNS TABLE (pruned integer, walked_to text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  -- The names of all streams' leases are between these two, and of no other lease.
  v_after text COLLATE "C" := coalesce(p_after, 'stream/');
  v_end text COLLATE "C" := 'stream0';
  v_walked integer;
  v_names text[];
  v_pauses_over text[];
  v_targets text[];
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 100000);
  IF p_after IS NOT NULL THEN
    PERFORM leasehold.require_name('p_after', p_after, 400);
  END IF;
  IF p_idle_before IS NULL OR p_idle_before > clock_timestamp() - interval '1 minute' THEN
    RAISE EXCEPTION 'p_idle_before is %, but must be at least one minute ago', coalesce(p_idle_before::text, 'NULL')
      USING ERRCODE = '22023';
  END IF;
  SELECT count(*), max(seen.lease_name),
         array_agg(seen.lease_name) FILTER (
           WHERE seen.expires_at = '-infinity' AND seen.renewed_at < p_idle_before
             AND (seen.paused_until IS NULL OR seen.paused_until < p_idle_before)
             AND (SELECT true FROM leasehold.outbox_pending p
                   WHERE p.scope = 'stream' AND p.target = seen.target AND p.stream = seen.stream LIMIT 1) IS NULL),
         array_agg(seen.lease_name) FILTER (WHERE seen.paused_until <= clock_timestamp())
    INTO v_walked, walked_to, v_names, v_pauses_over
    FROM (SELECT l.* FROM leasehold.leases l
           WHERE l.lease_name > v_after AND l.lease_name < v_end AND l.stream IS NOT NULL
           ORDER BY l.lease_name LIMIT p_batch_size) AS seen;
  IF v_walked < p_batch_size THEN
    walked_to := NULL;
  END IF;
  IF v_pauses_over IS NOT NULL THEN
    PERFORM leasehold.apply_stream_pauses(ARRAY(
      SELECT l.lease_name FROM leasehold.leases l
       WHERE l.lease_name = ANY (v_pauses_over) AND l.paused_until <= clock_timestamp()
         FOR NO KEY UPDATE SKIP LOCKED), clock_timestamp());
  END IF;
  pruned := 0;
  IF v_names IS NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;

  v_targets := ARRAY(
    SELECT f.target FROM leasehold.stream_floors f
     WHERE f.target IN (SELECT l.target FROM leasehold.leases l WHERE l.lease_name = ANY (v_names))
     ORDER BY f.target FOR NO KEY UPDATE SKIP LOCKED);
  v_names := ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
      JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
     WHERE l.lease_name = ANY (v_names) AND l.target = ANY (v_targets) AND l.expires_at = '-infinity'
       AND l.renewed_at < p_idle_before AND (l.paused_until IS NULL OR l.paused_until < p_idle_before)
       AND s.created_at < p_idle_before
       FOR UPDATE OF l, s SKIP LOCKED);
  -- Look again under the locks: an enqueuer may have committed since the statements above began.
  v_names := ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (v_names)
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream LIMIT 1) IS NULL);

  UPDATE leasehold.stream_floors f
     SET lease_epoch = greatest(f.lease_epoch, gone.lease_epoch), last_seq = greatest(f.last_seq, gone.last_seq)
    FROM (SELECT l.target, max(l.lease_epoch) AS lease_epoch, max(s.last_seq) AS last_seq
            FROM leasehold.leases l JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
           WHERE l.lease_name = ANY (v_names) GROUP BY l.target) AS gone
   WHERE f.target = gone.target;
  DELETE FROM leasehold.streams s USING leasehold.leases l
   WHERE l.lease_name = ANY (v_names) AND s.target = l.target AND s.stream = l.stream;
  DELETE FROM leasehold.stream_pauses s WHERE s.lease_name = ANY (v_names);
  DELETE FROM leasehold.leases l WHERE l.lease_name = ANY (v_names);
  pruned := cardinality(v_names);
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.prune_streams(timestamptz, integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.prune_streams(timestamptz, integer, text) TO leasehold_executor;
