-- Read the ledger as a stream of events: the rows after a cursor, in the order of (transaction_id, intent_id,
-- attempt_no). Begin with (0, zeros, 0) and continue from the last row. A reader misses no row and sees none
-- twice, because the function returns only rows of transactions that are older than every open one: nothing can
-- appear behind the cursor later.
-- The price: a transaction that has written anything on the server, in any database, delays newer events until
-- it ends.
-- target is NULL if retention has deleted the intent.
-- Locks nothing.
-- Raises: 22023 for bad arguments, and for a cursor ahead of all transactions: a database restored from a dump
-- starts its transaction numbers again.
CREATE OR REPLACE FUNCTION leasehold.read_events(
  p_after_transaction bigint, p_after_intent_id uuid, p_after_attempt_no integer, p_limit integer
) RETURNS TABLE (
  transaction_id bigint, intent_id uuid, attempt_no integer, target text, state text, reason text, holder text,
  lease_name text, lease_epoch bigint, started_at timestamptz, finished_at timestamptz, reference text,
  code text, detail text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_horizon xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_after xid8;
BEGIN
  PERFORM leasehold.require_between('p_limit', p_limit, 1, 10000);
  PERFORM leasehold.require_between('p_after_attempt_no', p_after_attempt_no, 0, 1000000);
  IF p_after_transaction IS NULL OR p_after_transaction < 0 OR p_after_intent_id IS NULL THEN
    RAISE EXCEPTION 'the cursor is NULL or negative; start with (0, %, 0)', '00000000-0000-0000-0000-000000000000'
      USING ERRCODE = '22023';
  END IF;
  v_after := p_after_transaction::text::xid8;
  IF v_after >= v_horizon THEN
    RAISE EXCEPTION 'the cursor is ahead of every transaction of this database'
      USING ERRCODE = '22023',
            HINT = 'Start again from the beginning: the cursor is from another database, or from before a restore.';
  END IF;

  RETURN QUERY
  WITH page AS MATERIALIZED (
    SELECT a.*
      FROM leasehold.outbox_attempts a
     WHERE (a.transaction_id, a.intent_id, a.attempt_no) > (v_after, p_after_intent_id, p_after_attempt_no)
       AND a.transaction_id < v_horizon
     ORDER BY a.transaction_id, a.intent_id, a.attempt_no
     LIMIT p_limit)
  SELECT page.transaction_id::text::bigint, page.intent_id, page.attempt_no,
         (SELECT i.target FROM leasehold.intents i WHERE i.intent_id = page.intent_id), page.state, page.reason,
         page.holder, page.lease_name, page.lease_epoch, page.started_at, page.finished_at, page.reference,
         page.code, page.detail
    FROM page
   ORDER BY page.transaction_id, page.intent_id, page.attempt_no;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_events(bigint, uuid, integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_events(bigint, uuid, integer, integer)
  TO leasehold_operator, leasehold_readonly, leasehold_auditor;
