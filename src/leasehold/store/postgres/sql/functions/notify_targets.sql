-- Wake the executors that wait for work of these targets: send one NOTIFY per target on the channel
-- leasehold_due, with the target as payload.
-- It is only a hint; polling alone is correct. Every NOTIFY commits under one global lock of PostgreSQL, so no
-- other function sends it. An intake calls this with some of its enqueues, or once after many commits.
-- Locks: PostgreSQL's notify lock at commit.
-- Raises: 22023 for bad arguments.
CREATE OR REPLACE FUNCTION leasehold.notify_targets(p_targets text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_target text;
BEGIN
  PERFORM leasehold.require_list('p_targets', p_targets, 1000);
  FOREACH v_target IN ARRAY p_targets LOOP
    IF length(v_target) > 64 THEN
      RAISE EXCEPTION 'p_targets has a name of more than 64 characters' USING ERRCODE = '22023';
    END IF;
  END LOOP;
  PERFORM pg_notify('leasehold_due', target) FROM unnest(p_targets) AS target;
END
$$;
REVOKE ALL ON FUNCTION leasehold.notify_targets(text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.notify_targets(text[]) TO leasehold_ingest, leasehold_executor;
