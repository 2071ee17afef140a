-- Read which sessions hold an advisory lock that cluster work needs, although they are no instance. The keys are public, and
-- any login may take any advisory lock. p_lock_keys are the keys by which these leases are elected; empty if by row.
-- Every row names the lock: election (of the advisory elector), call_marks (of the leader and of operators) or changes (of
-- everyone who writes to a cluster target; we hold it shared). The session that holds the election lock is ours if it is named
-- after the holder of the lease or after an instance, and the lease did not end longer ago than it lasts: by then the server
-- has ended the session of an instance. Locks of call_marks and changes are ours for moments. So look twice: a session that
-- still has such a lock in the same transaction (holder) stops cluster work, whoever it is.
-- Locks nothing. Raises: 22023.
CREATE OR REPLACE FUNCTION leasehold.read_lock_squatters(p_lease_names text[], p_lock_keys bigint[])
RETURNS TABLE (lease_name text, lock text, pid integer, holder text, login text, application_name text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM leasehold.require_list('p_lease_names', p_lease_names, 10000);
  IF cardinality(p_lock_keys) NOT IN (0, cardinality(p_lease_names)) OR p_lock_keys IS NULL
     OR array_position(p_lock_keys, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'p_lock_keys must be empty or have one key for each of the % leases', cardinality(p_lease_names)
      USING ERRCODE = '22023';
  END IF;
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT l.pid, l.mode, l.classid::bigint AS classid, l.objid::bigint AS objid, l.objsubid,
           l.pid || ':' || l.virtualtransaction AS holder
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  ), asked AS (
    SELECT given.lease_name, given.lock_key, hashtext(given.lease_name)::bigint & 4294967295 AS marks_id
      FROM unnest(p_lease_names, p_lock_keys) AS given (lease_name, lock_key)
  ), found AS (
    SELECT asked.lease_name, 'election' AS lock, held.pid, held.pid::text AS holder
      FROM asked JOIN held
        ON held.objsubid = 1 AND held.classid = (asked.lock_key >> 32) & 4294967295 AND held.objid = asked.lock_key & 4294967295
     UNION ALL
    SELECT asked.lease_name, 'call_marks', held.pid, held.holder
      FROM asked JOIN held ON held.objsubid = 2 AND held.classid = 1818584933 AND held.objid = asked.marks_id
     UNION ALL
    SELECT NULL, 'changes', held.pid, held.holder
      FROM held WHERE held.objsubid = 2 AND held.classid = 1818584932 AND held.mode = 'ExclusiveLock'
  )
  SELECT found.lease_name, found.lock, found.pid, found.holder, s.usename::text, s.application_name
    FROM found
    LEFT JOIN pg_stat_activity s ON s.pid = found.pid
   WHERE found.lock <> 'election'
      OR NOT EXISTS (
           SELECT FROM leasehold.leases l
            WHERE l.lease_name = found.lease_name
              AND l.expires_at + make_interval(secs => coalesce(l.lease_seconds, 0)) > clock_timestamp()
              AND (s.application_name = left('leasehold lock ' || l.holder_id, 63)
                   OR EXISTS (SELECT FROM leasehold.instances i
                               WHERE s.application_name = left('leasehold lock ' || i.instance_id, 63))))
   ORDER BY 1, 2, 3
   LIMIT 100;
END
$$;
REVOKE ALL ON FUNCTION leasehold.read_lock_squatters(text[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.read_lock_squatters(text[], bigint[]) TO leasehold_executor;
