-- Return the rows of a stream that are called, or asked about, together: up to p_rows_max consecutive rows from p_first_seq on,
-- with one action under one contract, all of them due. All but the first must fit into p_bytes_max.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.due_batch(
  p_target text, p_stream text, p_first_seq bigint, p_version integer, p_action text, p_rows_max integer, p_bytes_max bigint,
  p_now timestamptz
) RETURNS TABLE (place bigint, intent_id uuid, due_at timestamptz, is_claimable boolean)
LANGUAGE sql STABLE AS $$
  SELECT batch.place, batch.intent_id, batch.due_at, batch.is_claimable
    FROM (SELECT p.place, p.intent_id, p.due_at, p.is_claimable,
                 bool_and(p.place = 1 OR p.action = p_action AND p.action <> 'finish' AND p.due_at <= p_now
                          AND p.contract_version = p_version) OVER (ORDER BY p.place)
                 AND (p.place = 1 OR sum(p.content_bytes) OVER (ORDER BY p.place) <= p_bytes_max) AS is_in_batch
            FROM (SELECT p.intent_id, p.due_at, p.is_claimable, p.contract_version, p.content_bytes,
                         row_number() OVER (ORDER BY p.stream_seq) AS place,
                         leasehold.head_action(p.last_state, p.attempt_count, p.deadline_at, p_now) AS action
                    FROM leasehold.outbox_pending p
                   WHERE p.scope = 'stream' AND p.target = p_target AND p.stream = p_stream AND p.stream_seq >= p_first_seq
                   ORDER BY p.stream_seq LIMIT p_rows_max) AS p) AS batch
   WHERE batch.is_in_batch
$$;
REVOKE ALL ON FUNCTION leasehold.due_batch(text, text, bigint, integer, text, integer, bigint, timestamptz) FROM PUBLIC;
