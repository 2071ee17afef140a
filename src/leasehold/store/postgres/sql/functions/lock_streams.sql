-- Take the row locks of these streams, given as two lists of the same length, in sorted order, and make
-- the rows that are missing. Locks: streams by (target, stream), until commit: order inside a stream is
-- commit order, and only those who write to the same stream wait for one another. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_streams(p_targets text[], p_streams text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_stream record;
BEGIN
  FOR v_stream IN
    SELECT DISTINCT asked.target, asked.stream FROM unnest(p_targets, p_streams) AS asked (target, stream)
     ORDER BY 1, 2
  LOOP
    PERFORM 1 FROM leasehold.streams
      WHERE target = v_stream.target AND stream = v_stream.stream FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      -- DO UPDATE, not DO NOTHING: a row that another session has just made must be locked as well.
      INSERT INTO leasehold.streams (target, stream, last_seq) VALUES (v_stream.target, v_stream.stream, 0)
        ON CONFLICT (target, stream) DO UPDATE SET last_seq = streams.last_seq;
    END IF;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_streams(text[], text[]) FROM PUBLIC;
