-- Wake whoever waits for work of these targets: one NOTIFY on channel leasehold_due per target, with the
-- target as its payload. A hint with a price (every NOTIFY commits under one global lock), so no function
-- sends it by itself: an intake calls this with an enqueue now and then, or after its commits, for many of
-- them at once. Polling alone is correct. Locks: PostgreSQL's notify lock at commit. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.notify_targets(p_targets text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_target text;
BEGIN
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  FOREACH v_target IN ARRAY p_targets LOOP
    IF length(v_target) > 64 THEN
      RAISE EXCEPTION 'p_targets has a name of over 64 characters' USING ERRCODE = '22023';
    END IF;
  END LOOP;
  PERFORM pg_notify('leasehold_due', target) FROM unnest(p_targets) AS target;
END
$$;
REVOKE ALL ON FUNCTION leasehold.notify_targets(text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.notify_targets(text[]) TO leasehold_ingest, leasehold_executor;
