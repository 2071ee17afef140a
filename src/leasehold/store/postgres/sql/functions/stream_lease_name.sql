-- Return the name of the lease that covers a stream. It is unique, because neither targets nor the names of
-- cluster leases contain a slash. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.stream_lease_name(p_target text, p_stream text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'stream/' || p_target || '/' || p_stream $$;
REVOKE ALL ON FUNCTION leasehold.stream_lease_name(text, text) FROM PUBLIC;
