-- Take the row lock of every stream that this batch writes to, in sorted order, making the rows that
-- are missing. Locks: streams by (target, stream), until commit: order inside a stream is commit order.
CREATE OR REPLACE FUNCTION leasehold.lock_streams(p_intents jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_stream record;
BEGIN
  FOR v_stream IN
    SELECT DISTINCT entry ->> 'target' AS target, entry ->> 'stream' AS stream
      FROM jsonb_array_elements(p_intents) AS entry
     WHERE length(entry ->> 'stream') BETWEEN 1 AND 255
       AND (SELECT scope FROM leasehold.contracts
             WHERE target = entry ->> 'target' ORDER BY version DESC LIMIT 1) = 'stream'
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
REVOKE ALL ON FUNCTION leasehold.lock_streams(jsonb) FROM PUBLIC;
