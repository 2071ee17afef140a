-- Return the token floor of the current generation; NULL if leases must not be granted: this is not the database in which the
-- generation began, or a restore is being repaired.
-- The system identifier stands in a file that takes longer to read than all the rest, and cannot change while a session lives.
-- So the session remembers it. Whoever sets it to something else only refuses leases to its own session: begin_generation reads
-- the file.
-- It has no SET search_path, which would cost as much as the rest; its callers have set it.
-- Locks nothing. Raises: 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.current_token_floor() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_system_identifier text := current_setting('leasehold.system_identifier', true);
  v_current leasehold.generations;
BEGIN
  IF v_system_identifier IS NULL OR v_system_identifier = '' THEN
    SELECT set_config('leasehold.system_identifier', system_identifier::text, false) INTO v_system_identifier
      FROM pg_control_system();
  END IF;
  SELECT * INTO v_current FROM leasehold.generations ORDER BY generation_no DESC LIMIT 1;
  IF v_current.ready_at IS NOT NULL AND v_current.database_identity = leasehold.database_identity(v_system_identifier) THEN
    RETURN v_current.token_floor;
  END IF;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION leasehold.current_token_floor() FROM PUBLIC;
