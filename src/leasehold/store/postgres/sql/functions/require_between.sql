-- Refuse a number that is NULL, not finite, or out of bounds. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_between(
  p_argument text, p_value double precision, p_lowest double precision, p_highest double precision
) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  -- NaN is greater than every number, so the upper bound refuses it too.
  IF p_value IS NULL OR p_value < p_lowest OR p_value > p_highest THEN
    RAISE EXCEPTION '% is %, but must be from % to %',
      p_argument, coalesce(p_value::text, 'NULL'), p_lowest, p_highest
      USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_between(text, double precision, double precision, double precision)
  FROM PUBLIC;
