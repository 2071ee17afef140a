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
    LOOP
      PERFORM 1 FROM leasehold.streams
        WHERE target = v_stream.target AND stream = v_stream.stream FOR NO KEY UPDATE;
      EXIT WHEN FOUND;
      PERFORM leasehold.create_stream(v_stream.target, v_stream.stream);
    END LOOP;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_streams(text[], text[]) FROM PUBLIC;
