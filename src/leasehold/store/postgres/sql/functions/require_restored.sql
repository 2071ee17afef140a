-- Refuse while a restore is being repaired: what is not in doubt yet may have been sent by the lost database.
-- It has no SET search_path, as current_token_floor. Locks nothing. Raises: P7006.
CREATE OR REPLACE FUNCTION leasehold.require_restored() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_ready_at timestamptz := (SELECT g.ready_at FROM leasehold.generations g ORDER BY g.generation_no DESC LIMIT 1);
BEGIN
  IF v_ready_at IS NULL THEN
    RAISE EXCEPTION 'the database was restored, and its intents are being put in doubt'
      USING ERRCODE = 'P7006', HINT = 'Let `leasehold restored` run to its end.';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_restored() FROM PUBLIC;
