-- Return the id of the entry at a position (1 to 10,000) of a batch: the UUIDv7 of the batch with the position
-- in the 14 bits after the version. So the ids of a batch sort in the order of its entries, and the batch draws
-- random bits once instead of once per entry.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.batch_intent_id(p_batch_id text, p_place bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
  -- Twelve bits of the position are before the dash. After it come the variant (binary 10) and the last two bits.
  SELECT (left(p_batch_id, 15) || lpad(to_hex(p_place >> 2), 3, '0') || '-' || to_hex(8 | (p_place & 3))
          || substr(p_batch_id, 21))::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.batch_intent_id(text, bigint) FROM PUBLIC;
