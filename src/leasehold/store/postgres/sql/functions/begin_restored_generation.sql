-- Begin a new generation in the name of an operator who restored an older state of the database: from a dump, a copy, a
-- snapshot, or up to a point in time. The token floor rises at once. Nothing is granted from now on, to no instance, until
-- repair_restored_intents has put every intent in doubt that the lost database may have sent.
-- If a restore of this database is still being repaired, that one goes on (is_new is false), with the name and note of its
-- beginning.
-- Locks: the first row of generations FOR UPDATE. Raises: 22023; 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.begin_restored_generation(p_operator text, p_note text)
RETURNS TABLE (generation_no bigint, token_floor bigint, is_new boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_identity text := leasehold.read_database_identity();
  v_current leasehold.generations;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_intervention('00000000-0000-0000-0000-000000000000', p_operator, p_note);
  PERFORM FROM leasehold.generations g WHERE g.generation_no = 1 FOR UPDATE;
  SELECT * INTO v_current FROM leasehold.generations g ORDER BY g.generation_no DESC LIMIT 1;
  is_new := v_current.ready_at IS NOT NULL OR v_current.database_identity <> v_identity;
  IF is_new THEN
    INSERT INTO leasehold.generations (generation_no, token_floor, database_identity, cause, began_by, note, walk_to)
    VALUES (
      v_current.generation_no + 1, leasehold.next_token_floor(v_current.token_floor), v_identity, 'restored',
      p_operator, p_note,
      -- What is accepted from now on was not sent before.
      (SELECT p.intent_id FROM leasehold.outbox_pending p ORDER BY p.intent_id DESC LIMIT 1))
    RETURNING * INTO v_current;
  END IF;
  generation_no := v_current.generation_no;
  token_floor := v_current.token_floor;
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_restored_generation(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_restored_generation(text, text) TO leasehold_operator;
