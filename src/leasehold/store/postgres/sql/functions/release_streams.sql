-- Release streams, at shutdown or to give other instances their share. One verdict each: released or lease_lost. Their
-- heads can be claimed at once, behind other heads that are due.
-- p_unsent are items that were begun, but for which nothing was sent: their marks are removed, and their first_tried_at if
-- they have no attempt on the ledger. A call that is still in flight is put in doubt by whoever claims the stream next, and
-- so is one whose row somebody has locked: the other streams do not wait for it.
-- Locks: the lease rows FOR NO KEY UPDATE, by name. Reads the clock after that. Then p_unsent, SKIP LOCKED, and as
-- advance_streams.
-- Raises: 22023, also outside of READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.release_streams(
  p_holder_id text, p_lease_names text[], p_lease_epochs bigint[], p_unsent uuid[] DEFAULT '{}'
) RETURNS TABLE (lease_name text, verdict text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_held text[];
  v_unsent uuid[];
BEGIN
  PERFORM leasehold.require_list('p_unsent', p_unsent, 10000);
  v_held := leasehold.lock_held_streams(p_holder_id, p_lease_names, p_lease_epochs, p_to_begin => false);
  v_unsent := ARRAY(
    SELECT p.intent_id FROM leasehold.outbox_pending p
     -- Hashed, as below; without IS TRUE, a join would compare each name with all others.
     WHERE p.intent_id = ANY (p_unsent) AND p.begun_at IS NOT NULL AND (p.lease_name IN (SELECT unnest(v_held))) IS TRUE
       FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE leasehold.outbox_pending p
     SET begun_at = NULL, first_tried_at = CASE WHEN p.attempt_count > 0 THEN p.first_tried_at END
   WHERE p.intent_id = ANY (v_unsent);
  PERFORM leasehold.advance_streams(v_held, '{}', p_free_idle => true, p_begin => false);
  RETURN QUERY
  -- Hashed; = ANY would compare each name with all others.
  SELECT asked.lease_name, CASE WHEN asked.lease_name IN (SELECT unnest(v_held)) THEN 'released' ELSE 'lease_lost' END
    FROM unnest(p_lease_names) AS asked (lease_name);
END
$$;
REVOKE ALL ON FUNCTION leasehold.release_streams(text, text[], bigint[], uuid[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.release_streams(text, text[], bigint[], uuid[]) TO leasehold_executor;
