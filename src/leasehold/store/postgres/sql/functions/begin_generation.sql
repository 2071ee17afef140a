-- Make sure that the current generation is that of this database, and return it. If the database is another one than when the
-- generation began, a new one begins with a higher token floor, once however many instances call. Whoever meets P7006 calls it,
-- drops its leases and starts anew. Every instance calls it now and then, and drops its leases if the number has changed.
-- It does not end a restore that is being repaired: is_ready stays false until the operator has.
-- Locks: the first row of generations FOR UPDATE, only if the newest is of another database. Raises: 22023; 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.begin_generation(p_instance_id text)
RETURNS TABLE (generation_no bigint, token_floor bigint, is_new boolean, is_ready boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
DECLARE
  v_identity text := leasehold.read_database_identity();
  v_current leasehold.generations;
BEGIN
  PERFORM leasehold.require_read_committed();
  PERFORM leasehold.require_name('p_instance_id', p_instance_id, 128);
  is_new := false;
  SELECT * INTO v_current FROM leasehold.generations g ORDER BY g.generation_no DESC LIMIT 1;
  IF v_current.ready_at IS NOT NULL AND v_current.database_identity <> v_identity THEN
    PERFORM FROM leasehold.generations g WHERE g.generation_no = 1 FOR UPDATE;
    -- In a new statement: another session may have begun it meanwhile.
    SELECT * INTO v_current FROM leasehold.generations g ORDER BY g.generation_no DESC LIMIT 1;
    IF v_current.ready_at IS NOT NULL AND v_current.database_identity <> v_identity THEN
      INSERT INTO leasehold.generations (
        generation_no, token_floor, database_identity, cause, began_by, note, ready_at)
      VALUES (
        v_current.generation_no + 1, leasehold.next_token_floor(v_current.token_floor), v_identity, 'detected',
        p_instance_id, format('it was: %s', v_current.database_identity), clock_timestamp())
      RETURNING * INTO v_current;
      is_new := true;
    END IF;
  END IF;
  generation_no := v_current.generation_no;
  token_floor := v_current.token_floor;
  is_ready := v_current.ready_at IS NOT NULL;
  RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION leasehold.begin_generation(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.begin_generation(text) TO leasehold_executor;
