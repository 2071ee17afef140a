-- Create a stream: its row in streams and the lease that covers it. Both start at the floors of the target, so that the
-- numbers of a stream that was pruned do not go back. Does nothing if the stream exists.
-- The floors are read after the rows are inserted, in a new statement. An insert waits for a prune of the same stream, so
-- the floors are then those that the prune has raised. A transaction that is not READ COMMITTED would still read the
-- floors of its snapshot, so it locks them: if they were raised since, it fails (40001).
-- Locks: the new rows; outside of READ COMMITTED the row of stream_floors FOR SHARE.
-- Raises: nothing of its own.
CREATE OR REPLACE FUNCTION leasehold.create_stream(p_target text, p_stream text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lease_name text := leasehold.stream_lease_name(p_target, p_stream);
  v_floor leasehold.stream_floors;
BEGIN
  INSERT INTO leasehold.streams (target, stream, last_seq) VALUES (p_target, p_stream, 0) ON CONFLICT DO NOTHING;
  INSERT INTO leasehold.leases (
    lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at, grace_expires_at, target, stream)
  VALUES (v_lease_name, 'nobody', 0, clock_timestamp(), clock_timestamp(), '-infinity', '-infinity', p_target, p_stream)
  ON CONFLICT DO NOTHING;

  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT * INTO v_floor FROM leasehold.stream_floors WHERE target = p_target;
  ELSE
    SELECT * INTO v_floor FROM leasehold.stream_floors WHERE target = p_target FOR SHARE;
  END IF;
  UPDATE leasehold.streams SET last_seq = v_floor.last_seq
   WHERE target = p_target AND stream = p_stream AND last_seq < v_floor.last_seq;
  UPDATE leasehold.leases SET lease_epoch = v_floor.lease_epoch
   WHERE lease_name = v_lease_name AND lease_epoch < v_floor.lease_epoch;
END
$$;
REVOKE ALL ON FUNCTION leasehold.create_stream(text, text) FROM PUBLIC;
