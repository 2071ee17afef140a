-- Find out which of these streams have an enqueuer whose transaction is open: return those without a visible head whose row in
-- streams somebody else has locked. Such an enqueuer saw the former head and will not make its row a head, so the stream
-- must be looked at again. The rows of the others are locked, and the caller looks again in a new statement: then it sees
-- every row that an enqueuer has committed. So it never waits for an enqueuer.
-- Locks: the rows of streams without a visible head, FOR SHARE, SKIP LOCKED. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.lock_settled_streams(p_lease_names text[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_empty text[] := ARRAY(
    SELECT l.lease_name FROM leasehold.leases l
     WHERE l.lease_name = ANY (p_lease_names)
       AND (SELECT true FROM leasehold.outbox_pending p
             WHERE p.scope = 'stream' AND p.target = l.target AND p.stream = l.stream AND NOT p.awaits_confirmation
             ORDER BY p.stream_seq LIMIT 1) IS NULL);
BEGIN
  IF v_empty = '{}' THEN
    RETURN '{}';
  END IF;
  RETURN (
    WITH settled AS MATERIALIZED (
      SELECT l.lease_name FROM leasehold.leases l
        JOIN leasehold.streams s ON s.target = l.target AND s.stream = l.stream
       WHERE l.lease_name = ANY (v_empty)
         FOR SHARE OF s SKIP LOCKED
    )
    SELECT coalesce(array_agg(name), '{}')
      FROM unnest(v_empty) AS name WHERE name NOT IN (SELECT settled.lease_name FROM settled));
END
$$;
REVOKE ALL ON FUNCTION leasehold.lock_settled_streams(text[]) FROM PUBLIC;
