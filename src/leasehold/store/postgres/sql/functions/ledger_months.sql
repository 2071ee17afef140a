-- Return the monthly partitions of the ledger from the catalogue: name, time range and id range. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.ledger_months()
RETURNS TABLE (name text, begins_at timestamptz, ends_at timestamptz, first_id uuid, end_id uuid)
LANGUAGE sql STABLE SET search_path = pg_catalog, leasehold, pg_temp SET timezone = 'UTC' AS $$
  SELECT c.relname, month.begins_at, month.begins_at + interval '1 month',
         leasehold.lowest_intent_id(month.begins_at), leasehold.lowest_intent_id(month.begins_at + interval '1 month')
    FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid
   CROSS JOIN LATERAL (SELECT to_timestamp(substr(c.relname, 17), 'YYYY_MM') AS begins_at) AS month
   WHERE i.inhparent = 'leasehold.outbox_attempts'::regclass AND c.relname ~ '^outbox_attempts_\d{4}_\d{2}$'
$$;
REVOKE ALL ON FUNCTION leasehold.ledger_months() FROM PUBLIC;
