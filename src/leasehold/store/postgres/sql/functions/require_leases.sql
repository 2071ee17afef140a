-- Refuse invalid lists of leases: each name needs an epoch. Locks nothing. Raises 22023.
CREATE OR REPLACE FUNCTION leasehold.require_leases(p_holder_id text, p_lease_names text[], p_lease_epochs bigint[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
BEGIN
  PERFORM leasehold.require_name('p_holder_id', p_holder_id, 128);
  PERFORM leasehold.require_list('p_lease_names', p_lease_names, 10000);
  IF p_lease_epochs IS NULL OR cardinality(p_lease_names) <> cardinality(p_lease_epochs)
     OR array_position(p_lease_epochs, NULL) IS NOT NULL OR 1 > ANY (p_lease_epochs)
     OR 9000000000000000 < ANY (p_lease_epochs) THEN
    RAISE EXCEPTION 'p_lease_epochs must have one epoch, from 1 to 9e15, for each of the % leases',
      cardinality(p_lease_names) USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM unnest(p_lease_names) AS name
                 WHERE length(name) NOT BETWEEN 1 AND 400 OR name ~ '[[:cntrl:]]') THEN
    RAISE EXCEPTION 'p_lease_names must be 1 to 400 characters each, without control characters'
      USING ERRCODE = '22023';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.require_leases(text, text[], bigint[]) FROM PUBLIC;
