-- Return how many bytes a JSON value has as text, which is what claims hand out; 0 for NULL. Its stored size does not
-- tell: jsonb takes 12 bytes both for 1e308, which it writes as 309 digits, and for 1.
-- Locks nothing. The function has no SET clause, so PostgreSQL can inline it into the caller's statement.
-- Raises: 54000 if the text would have more than 1 GB.
CREATE OR REPLACE FUNCTION leasehold.json_text_bytes(p_json jsonb) RETURNS integer
LANGUAGE sql STABLE AS $$
  SELECT coalesce(octet_length(p_json::text), 0)
$$;
REVOKE ALL ON FUNCTION leasehold.json_text_bytes(jsonb) FROM PUBLIC;
