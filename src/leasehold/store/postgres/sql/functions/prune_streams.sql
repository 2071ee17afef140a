-- Delete streams that have been empty since before p_idle_before: their rows in streams and leases. Only streams without an
-- unfinished intent, that nobody holds and that are not paused. Call it until it returns less than p_batch_size.
-- Neither an epoch nor a sequence number goes back if a stream is used again: the floors of its target are raised first, and
-- new streams start there.
-- Locks: the rows of the streams and their leases, SKIP LOCKED, so it waits for nobody; the row of the target in
-- stream_floors.
-- Raises: 22023 if p_idle_before is less than a day ago.
CREATE OR REPLACE FUNCTION leasehold.prune_streams(p_idle_before timestamptz, p_batch_size integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_names text[];
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 100000);
  IF p_idle_before IS NULL OR p_idle_before > clock_timestamp() - interval '1 day' THEN
    RAISE EXCEPTION 'p_idle_before is %, but must be at least one day ago', coalesce(p_idle_before::text, 'NULL')
      USING ERRCODE = '22023';
  END IF;
  WITH idle AS MATERIALIZED (
    SELECT l.lease_name FROM leasehold.leases l
      JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
     WHERE l.stream IS NOT NULL AND l.expires_at = '-infinity'
       AND (l.paused_until IS NULL OR l.paused_until < p_idle_before)
       AND l.renewed_at < p_idle_before AND s.created_at < p_idle_before
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream LIMIT 1) IS NULL
     LIMIT p_batch_size
       FOR UPDATE OF l, s SKIP LOCKED
  )
  SELECT array_agg(idle.lease_name) INTO v_names FROM idle;
  IF v_names IS NULL THEN
    RETURN 0;
  END IF;
  -- Look again under the locks: an enqueuer may have committed since the statement above began.
  v_names := ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (v_names)
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream LIMIT 1) IS NULL);

  UPDATE leasehold.stream_floors f
     SET lease_epoch = greatest(f.lease_epoch, pruned.lease_epoch), last_seq = greatest(f.last_seq, pruned.last_seq)
    FROM (SELECT l.target, max(l.lease_epoch) AS lease_epoch, max(s.last_seq) AS last_seq
            FROM leasehold.leases l JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
           WHERE l.lease_name = ANY (v_names) GROUP BY l.target) AS pruned
   WHERE f.target = pruned.target;
  DELETE FROM leasehold.streams s USING leasehold.leases l
   WHERE l.lease_name = ANY (v_names) AND s.target = l.target AND s.stream = l.stream;
  DELETE FROM leasehold.leases l WHERE l.lease_name = ANY (v_names);
  RETURN cardinality(v_names);
END
$$;
REVOKE ALL ON FUNCTION leasehold.prune_streams(timestamptz, integer) FROM PUBLIC;
