-- How many transactions ago the oldest began that may still need rows as they were then. Until it ends, no row that
-- died since can be removed, and every claim has to step over those of the queue. Counted are open transactions that
-- have written, of every database and prepared ones among them; what only reads in this database; standbys that report
-- back; and replication slots. Who they are, only some logins may see; how old they are, every login. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.oldest_xmin_age() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp AS $$
  SELECT max(age(held.xid))::bigint
    FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::xid
           UNION ALL
          -- What reads in another database keeps rows there only; a standby belongs to none.
          SELECT backend_xmin FROM pg_stat_activity
           WHERE datname = current_database() OR datname IS NULL
           UNION ALL
          SELECT unnest(ARRAY[xmin, catalog_xmin]) FROM pg_replication_slots) AS held (xid)
$$;
REVOKE ALL ON FUNCTION leasehold.oldest_xmin_age() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION leasehold.oldest_xmin_age()
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
