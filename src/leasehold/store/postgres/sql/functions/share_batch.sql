-- Share a batch among targets, in two passes: the first gives each target its share, or its limit if that is less; the second gives
-- what is left to targets that have more, up to their limits. So a flood for one target does not starve the rest.
-- Returns how many rows the pass may take of each target. place is that of the target in p_targets; its seat is another one in
-- each call (p_first_seat is random), so that a batch smaller than the number of targets reaches all of them in turn.
-- Without p_target_limits no target has a limit. Whoever claims walks each target on its own, within these numbers.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.share_batch(
  p_batch_size integer, p_targets text[], p_target_limits integer[], p_first_seat integer, p_pass integer
) RETURNS TABLE (target text, place bigint, seat bigint, rows_max bigint)
LANGUAGE sql IMMUTABLE AS $$
  SELECT shared.target, shared.place, shared.seat,
         CASE p_pass WHEN 1 THEN least(shared.share, shared.cap) ELSE greatest(shared.cap - shared.share, 0) END
    FROM (SELECT seated.target, seated.place, seated.seat, coalesce(seated.target_limit, p_batch_size) AS cap,
                 p_batch_size * (seated.seat + 1) / cardinality(p_targets)
                   - p_batch_size * seated.seat / cardinality(p_targets) AS share
            FROM (SELECT given.target, given.target_limit, given.place,
                         (given.place + p_first_seat) % cardinality(p_targets) AS seat
                    FROM unnest(p_targets, p_target_limits) WITH ORDINALITY AS given (target, target_limit, place)) AS seated
         ) AS shared
$$;
REVOKE ALL ON FUNCTION leasehold.share_batch(integer, text[], integer[], integer, integer) FROM PUBLIC;
