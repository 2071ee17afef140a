-- Lock the rows of these streams and create the missing ones. The two lists have the same length. The order
-- inside a stream is the commit order, and only writers of the same stream wait for one another.
-- Locks: the rows of streams, sorted by (target, stream), until commit.
-- Raises: nothing.
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
      -- DO UPDATE, not DO NOTHING: it also locks a row that another session has just created.
      INSERT INTO leasehold.streams (target, stream, last_seq) VALUES (v_stream.target, v_stream.stream, 0)
        ON CONFLICT (target, stream) DO UPDATE SET last_seq = streams.last_seq;
    END IF;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_streams(text[], text[]) FROM PUBLIC;
