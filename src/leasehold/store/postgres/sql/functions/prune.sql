-- Delete finished intents that were accepted before p_accepted_before (retention). It works on the months of
-- the ledger that end before this time and have no unfinished intent. Each call deletes at most p_batch_size
-- intents of the oldest such month, and drops the month's partition when no intent is left. Call it until it
-- returns done.
-- A pruned idempotency key can be used again, so keys are unique only within the retention time.
-- Returns what it deleted, and the months that it kept because of unfinished intents.
-- Locks: the deleted intents; the ledger itself, exclusively and briefly, if it drops a month.
-- Raises: 55P03 if the lock is not free within two seconds (call it again), 22023 if p_accepted_before is less
-- than a day ago.
CREATE OR REPLACE FUNCTION leasehold.prune(p_accepted_before timestamptz, p_batch_size integer)
RETURNS TABLE (intents_deleted bigint, partition_dropped text, partitions_kept text[], done boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
  v_part record;
BEGIN
  PERFORM leasehold.require_between('p_batch_size', p_batch_size, 1, 100000);
  IF p_accepted_before IS NULL OR p_accepted_before > clock_timestamp() - interval '1 day' THEN
    RAISE EXCEPTION 'p_accepted_before is %, but must be at least one day ago', coalesce(p_accepted_before::text, 'NULL')
      USING ERRCODE = '22023';
  END IF;
  DELETE FROM leasehold.instances WHERE alive_until < p_accepted_before;
  intents_deleted := 0;
  partitions_kept := '{}';
  done := true;
  FOR v_part IN SELECT * FROM leasehold.ledger_months() WHERE ends_at <= p_accepted_before ORDER BY begins_at LOOP
    IF EXISTS (SELECT FROM leasehold.outbox_pending
                WHERE intent_id >= v_part.first_id AND intent_id < v_part.end_id) THEN
      partitions_kept := partitions_kept || v_part.name;
      CONTINUE;
    END IF;
    DELETE FROM leasehold.intents WHERE intent_id IN (
      SELECT intent_id FROM leasehold.intents
       WHERE intent_id >= v_part.first_id AND intent_id < v_part.end_id
       ORDER BY intent_id LIMIT p_batch_size);
    GET DIAGNOSTICS intents_deleted = ROW_COUNT;
    IF intents_deleted < p_batch_size THEN
      EXECUTE format('DROP TABLE leasehold.%I', v_part.name);
      partition_dropped := v_part.name;
    END IF;
    done := false;
    EXIT;
  END LOOP;
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.prune(timestamptz, integer) FROM PUBLIC;
