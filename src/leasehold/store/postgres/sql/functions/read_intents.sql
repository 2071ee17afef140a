-- Parse the entries of an enqueue call: return each with its id, contract, hash, times and, if it is invalid,
-- its problem.
-- Locks nothing.
-- Raises: 22P02 or 22007 for a value of the wrong type.
-- The function is STABLE and has no SET clause, so PostgreSQL can inline it into the caller's statement.
CREATE OR REPLACE FUNCTION leasehold.read_intents(
  p_intents jsonb, p_contracts leasehold.contracts[], p_batch_id text, p_now timestamptz
)
RETURNS TABLE (
  ordinal integer, intent_id uuid, target text, contract_version integer, scope text, lease_name text,
  stream text, idempotency_key text, is_key_of_all_targets boolean, payload jsonb, body bytea, content_bytes integer,
  content_type text, payload_hash bytea, metadata jsonb, trace_context text, priority smallint,
  due_at timestamptz, deadline_at timestamptz, problem text)
LANGUAGE sql STABLE AS $$
  SELECT ordinal, intent_id, target, version, scope,
         CASE scope WHEN 'cluster' THEN cluster_lease_name
                    WHEN 'stream' THEN leasehold.stream_lease_name(target, stream) END,
         stream, idempotency_key, idempotency_key IS NOT NULL AND coalesce(key_scope = 'all', false),
         payload, raw_body, content_bytes, content_type,
         -- Nobody can repeat an intent without a key, or one that is never accepted, so it needs no hash.
         CASE WHEN idempotency_key IS NOT NULL AND content_bytes <= 1048576 THEN leasehold.content_hash(payload_text, content_type, raw_body) END,
         metadata, trace_context,
         coalesce(priority, contract_priority), first_due_at, last_at,
         leasehold.intent_problem(
           target, payload, raw_body, content_bytes, content_type, idempotency_key, key_scope, stream, priority, due_at, delay_seconds,
           deadline_at, deadline_seconds, metadata, trace_context, version, scope, first_due_at, last_at, p_now)
    FROM (
      SELECT raw.*, c.version, c.scope, c.lease_name AS cluster_lease_name,
             c.priority AS contract_priority,
             coalesce(octet_length(raw.payload_text), octet_length(raw.raw_body), 0) AS content_bytes,
             leasehold.intent_due_at(raw.due_at, raw.delay_seconds, p_now) AS first_due_at,
             leasehold.intent_deadline_at(raw.deadline_at, raw.deadline_seconds, c.deadline_seconds, p_now) AS last_at
        FROM (
          SELECT entry.*, entry.ordinality::integer AS ordinal,
                 leasehold.batch_intent_id(p_batch_id, entry.ordinality) AS intent_id,
                 decode(entry.body, 'base64') AS raw_body, entry.payload::text AS payload_text
            FROM ROWS FROM (jsonb_populate_recordset(NULL::leasehold.new_intent, p_intents))
                 WITH ORDINALITY AS entry
          -- Not merged with the query around it, which would make the text for each of its uses.
          OFFSET 0) AS raw
        LEFT JOIN unnest(p_contracts) AS c ON c.target = raw.target) AS timed
$$;
REVOKE ALL ON FUNCTION leasehold.read_intents(jsonb, leasehold.contracts[], text, timestamptz) FROM PUBLIC;
