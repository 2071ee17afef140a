-- Refuse invalid bounds of a walk over targets: p_target_limits has one number per target, p_due_from four times.
-- Both may be NULL. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_walk(
  p_targets text[], p_target_limits integer[], p_due_from timestamptz[]
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF cardinality(p_target_limits) <> cardinality(p_targets) OR array_position(p_target_limits, NULL) IS NOT NULL
     OR 0 > ANY (p_target_limits) THEN
    RAISE EXCEPTION 'p_target_limits must have one number, not negative, for each of the % targets',
      cardinality(p_targets) USING ERRCODE = '22023';
  ELSIF cardinality(p_due_from) <> 4 * cardinality(p_targets) OR array_position(p_due_from, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'p_due_from must have four times for each of the % targets, none of them NULL',
      cardinality(p_targets) USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_walk(text[], integer[], timestamptz[]) FROM PUBLIC;
