-- The id of the entry at a place (1 to 10,000) of a batch: the batch's own UUIDv7 with the place in its
-- 14 bits after the version, so that the entries of a batch stand in their order, and randomness is
-- drawn once (where the server has no OpenSSL, each draw opens a device). Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.batch_intent_id(p_batch_id text, p_place bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
  -- Twelve bits before the dash; after it the variant bits, 10, and the last two.
  SELECT (left(p_batch_id, 15) || lpad(to_hex(p_place >> 2), 3, '0') || '-' || to_hex(8 | (p_place & 3))
          || substr(p_batch_id, 21))::uuid
$$;
REVOKE ALL ON FUNCTION leasehold.batch_intent_id(text, bigint) FROM PUBLIC;
