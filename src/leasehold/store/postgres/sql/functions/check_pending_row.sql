-- Check a row of outbox_pending: true, or the row is refused (23514) with the name of the broken rule.
-- This is the table's only CHECK; see check_intent_row. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.check_pending_row(
  p_scope text, p_lease_name text, p_stream text, p_stream_seq bigint, p_priority smallint,
  p_attempt_count integer, p_begun_at timestamptz, p_begun_epoch bigint, p_claimed_by text, p_lease_token uuid,
  p_lease_expires_at timestamptz, p_lease_seconds double precision
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_broken text := CASE
    WHEN num_nonnulls(p_claimed_by, p_lease_token, p_lease_expires_at, p_lease_seconds) NOT IN (0, 4)
      THEN 'outbox_pending_lease_all_or_none'
    WHEN p_scope NOT IN ('item', 'stream', 'cluster') THEN 'outbox_pending_scope_known'
    WHEN (p_scope = 'item') <> (p_lease_name IS NULL) THEN 'outbox_pending_only_items_lack_a_lease'
    WHEN p_scope <> 'item' AND p_claimed_by IS NOT NULL THEN 'outbox_pending_claims_are_items'
    WHEN p_scope = 'stream' AND (p_stream IS NULL OR p_stream_seq IS NULL) THEN 'outbox_pending_stream_is_ordered'
    WHEN p_begun_epoch IS NOT NULL AND p_begun_at IS NULL THEN 'outbox_pending_begun_under_epoch'
    WHEN p_priority NOT BETWEEN 0 AND 3 THEN 'outbox_pending_priority_level'
    WHEN p_attempt_count < 0 THEN 'outbox_pending_attempt_count_natural'
    END;
BEGIN
  IF v_broken IS NOT NULL THEN
    RETURN leasehold.refuse_row('outbox_pending', v_broken);
  END IF;
  RETURN true;
END
$$;
REVOKE ALL ON FUNCTION leasehold.check_pending_row(
  text, text, text, bigint, smallint, integer, timestamptz, bigint, text, uuid, timestamptz,
  double precision) FROM PUBLIC;
