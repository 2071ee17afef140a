-- The name of the lease that covers a stream. Locks nothing. A target has no slash, and the names of
-- cluster leases neither, so no two things share a name.
CREATE OR REPLACE FUNCTION leasehold.stream_lease_name(p_target text, p_stream text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'stream/' || p_target || '/' || p_stream $$;
REVOKE ALL ON FUNCTION leasehold.stream_lease_name(text, text) FROM PUBLIC;
