-- Return what a new intent has different from the first intent of its key: target, payload, stream, or several of them
-- joined by "and"; NULL if nothing. Other options are not compared: they do not change what is done to whom. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.key_difference(
  p_first leasehold.intents, p_target text, p_payload_hash bytea, p_stream text
) RETURNS text
LANGUAGE sql STABLE AS $$
  SELECT nullif(concat_ws(' and ',
    CASE WHEN (p_first).target IS DISTINCT FROM p_target THEN 'target' END,
    CASE WHEN (p_first).payload_hash IS DISTINCT FROM p_payload_hash THEN 'payload' END,
    CASE WHEN (p_first).stream IS DISTINCT FROM p_stream THEN 'stream' END), '')
$$;
REVOKE ALL ON FUNCTION leasehold.key_difference(leasehold.intents, text, bytea, text) FROM PUBLIC;
