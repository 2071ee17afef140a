-- Refuse a list that is NULL, contains NULL, repeats an entry or is too long. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_list(p_argument text, p_list anyarray, p_length_max integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF p_list IS NULL THEN
    RAISE EXCEPTION '% is NULL, but must be a list', p_argument USING ERRCODE = '22023';
  ELSIF cardinality(p_list) > p_length_max THEN
    RAISE EXCEPTION '% has % entries, but at most % are allowed',
      p_argument, cardinality(p_list), p_length_max USING ERRCODE = '22023';
  ELSIF array_position(p_list, NULL) IS NOT NULL THEN
    RAISE EXCEPTION '% contains NULL', p_argument USING ERRCODE = '22023';
  ELSIF cardinality(p_list) > 1 THEN  -- a single entry cannot be repeated
    IF (SELECT count(*) > count(DISTINCT entry) FROM unnest(p_list) AS entry) THEN
      RAISE EXCEPTION '% names an entry twice', p_argument USING ERRCODE = '22023';
    END IF;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_list(text, anyarray, integer) FROM PUBLIC;
