-- Check that all these leases are held, for a caller that reads what they cover. It takes no lock: every later
-- write under a lease is fenced by itself, and a row lock is a write, so each read would wait for the disk.
-- Locks nothing.
-- Raises: P7002 with the name of a lost lease as DETAIL, 22023 for bad arguments or an isolation level other
-- than READ COMMITTED.
CREATE OR REPLACE FUNCTION leasehold.verify_leases(p_holder_id text, p_lease_names text[], p_lease_epochs bigint[])
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_lost text;
BEGIN
  PERFORM leasehold.require_leases(p_holder_id, p_lease_names, p_lease_epochs);
  PERFORM leasehold.require_read_committed();
  SELECT asked.lease_name INTO v_lost
    FROM unnest(p_lease_names, p_lease_epochs) AS asked (lease_name, lease_epoch)
    LEFT JOIN leasehold.leases l
      ON l.lease_name = asked.lease_name AND l.lease_epoch = asked.lease_epoch AND l.holder_id = p_holder_id
     AND l.expires_at > clock_timestamp()
   WHERE l.lease_name IS NULL
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'lease % is lost', v_lost
      USING ERRCODE = 'P7002', DETAIL = v_lost, HINT = 'Drop its schedule and stop acting under this lease.';
  END IF;
END
$$;
REVOKE ALL ON FUNCTION leasehold.verify_leases(text, text[], bigint[]) FROM PUBLIC;
