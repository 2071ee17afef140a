-- Assign sequence numbers to the entries of an enqueue call. numbers has one number per entry, in the order
-- of the call; NULL if the entry has no stream or is refused. idle_leases are the leases of those streams whose first new
-- row becomes their head; see idle_streams.
-- The numbers are assigned under the row lock of the stream, so the order inside a stream is the commit order.
-- If an entry turns out to be a duplicate, its number is skipped. A gap is harmless; a wrong order is not.
-- Locks: the rows of streams, sorted by (target, stream), until commit. It creates missing rows.
-- Raises: nothing of its own.
CREATE OR REPLACE FUNCTION leasehold.assign_stream_numbers(
  p_intents jsonb, p_contracts leasehold.contracts[], OUT numbers bigint[], OUT idle_leases text[])
LANGUAGE plpgsql SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_stream record;
  v_last bigint;
BEGIN
  numbers := array_fill(NULL::bigint, ARRAY[jsonb_array_length(p_intents)]);
  idle_leases := '{}';
  FOR v_stream IN
    SELECT entry.target, entry.stream, array_agg(entry.ordinal ORDER BY entry.ordinal) AS places
      FROM leasehold.read_intents(p_intents, p_contracts, NULL, clock_timestamp()) AS entry
     WHERE entry.scope = 'stream' AND entry.problem IS NULL
     GROUP BY entry.target, entry.stream
     ORDER BY entry.target, entry.stream
  LOOP
    LOOP
      UPDATE leasehold.streams s SET last_seq = s.last_seq + cardinality(v_stream.places)
       WHERE s.target = v_stream.target AND s.stream = v_stream.stream
      RETURNING s.last_seq INTO v_last;
      EXIT WHEN FOUND;
      PERFORM leasehold.create_stream(v_stream.target, v_stream.stream);
    END LOOP;
    FOR v_place IN 1..cardinality(v_stream.places) LOOP
      numbers[v_stream.places[v_place]] := v_last - cardinality(v_stream.places) + v_place;
    END LOOP;
    idle_leases := idle_leases || leasehold.stream_lease_name(v_stream.target, v_stream.stream);
  END LOOP;
  idle_leases := leasehold.idle_streams(idle_leases);
END
$$;
REVOKE ALL ON FUNCTION leasehold.assign_stream_numbers(jsonb, leasehold.contracts[]) FROM PUBLIC;
