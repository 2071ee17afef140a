-- Return the token floor, or refuse to grant, renew or begin anything: commits of this database may have been lost, so leases
-- of the former generation may be another's, and their fencing tokens may repeat. Every function that grants or renews a
-- lease, or begins a call under one, calls it. Functions that record results do not: a result under a lease that the
-- database knows is fenced by that lease, and must not be lost.
-- It has no SET search_path, as current_token_floor. Locks nothing. Raises: P7006; 55000 on a standby.
CREATE OR REPLACE FUNCTION leasehold.require_generation() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_token_floor bigint := leasehold.current_token_floor();
  v_current leasehold.generations;
BEGIN
  IF v_token_floor IS NOT NULL THEN
    RETURN v_token_floor;
  END IF;
  PERFORM leasehold.require_restored();
  SELECT * INTO v_current FROM leasehold.generations ORDER BY generation_no DESC LIMIT 1;
  RAISE EXCEPTION 'the database is another one than before: % now, % when its generation began',
    leasehold.read_database_identity(), coalesce(v_current.database_identity, 'none')
    USING ERRCODE = 'P7006', HINT = 'Drop all leases and call begin_generation.';
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_generation() FROM PUBLIC;
