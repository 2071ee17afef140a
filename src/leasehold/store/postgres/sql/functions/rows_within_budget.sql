-- Return the places (from 1) of the rows that one claim may hand out: p_sizes are the bytes of their contents, p_seats says
-- whose they are. The seats share the budget: rows come in the order of the bytes that their seat has had with them, so
-- large rows leave room to the small ones of others. But the first row of the lowest seat comes before all others; the caller
-- gives the seats another order each time, so nobody's large rows starve.
-- The first p_least rows are always among them, so that a row over the whole budget is handed out too, alone.
-- Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.rows_within_budget(
  p_sizes integer[], p_seats integer[], p_bytes_max bigint, p_least integer
) RETURNS integer[]
LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(array_agg(counted.place), '{}')
    FROM (
      SELECT shared.place, sum(shared.size) OVER waiting AS bytes, row_number() OVER waiting AS number
        FROM (
          SELECT given.size, given.seat, given.place::integer AS place,
                 row_number() OVER (ORDER BY given.seat, given.place) = 1 AS is_first,
                 sum(given.size) OVER (PARTITION BY given.seat ORDER BY given.place) AS seat_bytes
            FROM unnest(p_sizes, p_seats) WITH ORDINALITY AS given (size, seat, place)) AS shared
      WINDOW waiting AS (ORDER BY NOT shared.is_first, shared.seat_bytes, shared.seat, shared.place)) AS counted
   WHERE counted.number <= p_least OR counted.bytes <= p_bytes_max
$$;
REVOKE ALL ON FUNCTION leasehold.rows_within_budget(integer[], integer[], bigint, integer) FROM PUBLIC;
