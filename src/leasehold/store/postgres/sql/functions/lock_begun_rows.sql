-- Lock the rows of a stream whose calls are in flight, so that they can be put in doubt. Returns whether all of them are locked now:
-- not if somebody else has locked one.
-- Locks: the begun rows FOR UPDATE, SKIP LOCKED. The caller holds the lease row. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_begun_rows(p_target text, p_stream text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_begun uuid[] := ARRAY(
    SELECT first.intent_id
      FROM (SELECT p.intent_id, p.begun_at FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream
             ORDER BY p.stream_seq LIMIT 200) AS first
     WHERE first.begun_at IS NOT NULL);
BEGIN
  RETURN cardinality(v_begun) = cardinality(ARRAY(
    SELECT p.intent_id FROM leasehold.outbox_pending p WHERE p.intent_id = ANY (v_begun) FOR UPDATE SKIP LOCKED));
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_begun_rows(text, text) FROM PUBLIC;
