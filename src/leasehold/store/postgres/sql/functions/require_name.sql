-- Refuse a name that is NULL, empty, too long, or has control characters. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_name(p_argument text, p_value text, p_length_max integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  IF p_value IS NULL OR length(p_value) NOT BETWEEN 1 AND p_length_max OR p_value ~ '[[:cntrl:]]' THEN
    RAISE EXCEPTION '% is %, but must be 1 to % characters without control characters',
      p_argument, coalesce(quote_literal(left(p_value, 80)), 'NULL'), p_length_max
      USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_name(text, text, integer) FROM PUBLIC;
