-- Read the entries of an enqueue call: give each its id, contract, hash and times, and say what is
-- wrong with it, if anything. Locks nothing. Raises what a value of the wrong type raises (22P02, 22007).
-- Stable and without settings of its own, so that its text is planned as part of the caller's statement.
CREATE OR REPLACE FUNCTION leasehold.read_intents(
  p_intents jsonb, p_contracts leasehold.contracts[], p_batch_id text, p_now timestamptz
)
RETURNS TABLE (
  ordinal integer, intent_id uuid, target text, contract_version integer, scope text, lease_name text,
  stream text, idempotency_key text, is_key_of_all_targets boolean, payload jsonb, body bytea,
  content_type text, payload_hash bytea, metadata jsonb, trace_context text, priority smallint, due_at timestamptz, deadline_at timestamptz,
  problem text)
LANGUAGE sql STABLE AS $$
  SELECT ordinal, intent_id, target, version, scope,
         CASE scope WHEN 'cluster' THEN cluster_lease_name
                    WHEN 'stream' THEN leasehold.stream_lease_name(target, stream) END,
         stream, idempotency_key, idempotency_key IS NOT NULL AND coalesce(key_scope = 'all', false),
         payload, raw_body, content_type,
         -- Nobody can repeat an intent that has no key of its own.
         CASE WHEN idempotency_key IS NOT NULL THEN leasehold.content_hash(payload, content_type, raw_body) END,
         metadata, trace_context,
         coalesce(priority, contract_priority, 1::smallint), first_due_at, last_at,
         CASE
           WHEN target IS NULL THEN 'target is missing'
           WHEN version IS NULL THEN 'unknown_target'
           WHEN num_nonnulls(payload, raw_body) <> 1 THEN 'exactly one of payload and body must be given'
           WHEN (raw_body IS NULL) <> (content_type IS NULL) THEN 'content_type goes with body, and only with it'
           WHEN pg_column_size(payload) > 1048576 OR octet_length(raw_body) > 1048576
             THEN 'payload or body is over 1 MiB'
           WHEN length(idempotency_key) NOT BETWEEN 1 AND 255 OR idempotency_key ~ '[[:cntrl:]]'
             THEN 'idempotency_key must be 1 to 255 characters without control characters'
           WHEN key_scope NOT IN ('target', 'all') THEN 'key_scope must be target or all'
           WHEN length(content_type) NOT BETWEEN 1 AND 255 OR content_type ~ '[[:cntrl:]]'
             THEN 'content_type must be 1 to 255 characters without control characters'
           WHEN scope = 'stream' AND stream IS NULL THEN 'stream is missing, but the target''s scope is stream'
           WHEN length(stream) NOT BETWEEN 1 AND 255 OR stream ~ '[[:cntrl:]]'
             THEN 'stream must be 1 to 255 characters without control characters'
           WHEN priority NOT BETWEEN 0 AND 3 THEN 'priority must be from 0 (first) to 3 (last)'
           WHEN due_at IS NOT NULL AND delay_seconds IS NOT NULL THEN 'give due_at or delay_seconds, not both'
           WHEN delay_seconds NOT BETWEEN 0 AND 315360000 THEN 'delay_seconds must be from 0 to 315360000 (ten years)'
           WHEN NOT isfinite(due_at) OR due_at > p_now + interval '10 years' THEN 'due_at must be within ten years'
           WHEN deadline_at IS NOT NULL AND deadline_seconds IS NOT NULL
             THEN 'give deadline_at or deadline_seconds, not both'
           WHEN deadline_seconds NOT BETWEEN 0 AND 315360000
             THEN 'deadline_seconds must be from 0 to 315360000 (ten years)'
           WHEN NOT isfinite(last_at) OR last_at <= greatest(p_now, first_due_at)
             THEN 'the deadline must lie after now and after due_at'
           WHEN length(metadata::text) > 16384 THEN 'metadata is over 16 KiB'
           WHEN length(trace_context) > 512 OR trace_context ~ '[[:cntrl:]]'
             THEN 'trace_context must be up to 512 characters without control characters'
         END
    FROM (
      SELECT raw.*, c.version, c.scope, c.lease_name AS cluster_lease_name,
             (c.terms ->> 'priority')::numeric::smallint AS contract_priority,
             -- A number that no interval can hold is left for the checks above to name.
             coalesce(raw.due_at, p_now + CASE WHEN raw.delay_seconds BETWEEN 0 AND 315360000
                                               THEN make_interval(secs => raw.delay_seconds)
                                               ELSE interval '0' END) AS first_due_at,
             coalesce(raw.deadline_at, p_now + CASE
               WHEN coalesce(raw.deadline_seconds, c.deadline_seconds) BETWEEN 0 AND 315360000
               THEN make_interval(secs => coalesce(raw.deadline_seconds, c.deadline_seconds)) END) AS last_at
        FROM (
          SELECT entry.*, entry.ordinality::integer AS ordinal,
                 leasehold.numbered_intent_id(p_batch_id, entry.ordinality) AS intent_id,
                 decode(entry.body, 'base64') AS raw_body
            FROM ROWS FROM (jsonb_to_recordset(p_intents) AS (
                   target text, payload jsonb, body text, content_type text, idempotency_key text, key_scope text,
                   stream text, priority smallint, due_at timestamptz, delay_seconds double precision, deadline_at timestamptz,
                   deadline_seconds double precision, metadata jsonb, trace_context text)
                 ) WITH ORDINALITY AS entry) AS raw
        LEFT JOIN unnest(p_contracts) AS c ON c.target = raw.target) AS timed
$$;
REVOKE ALL ON FUNCTION leasehold.read_intents(jsonb, leasehold.contracts[], text, timestamptz) FROM PUBLIC;
