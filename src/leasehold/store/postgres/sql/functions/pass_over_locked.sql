-- Return the steps that are left when others have locked these rows: a stream whose first row is among them has the state
-- recheck, and a batch ends before the first of them. The holder of a stream with a call in flight comes back to it anyway.
-- Locks nothing. Raises: nothing.
CREATE OR REPLACE FUNCTION leasehold.pass_over_locked(p_steps leasehold.stream_step[], p_locked uuid[])
RETURNS leasehold.stream_step[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, leasehold, pg_temp AS $$
DECLARE
  v_steps leasehold.stream_step[] := '{}';
  v_step leasehold.stream_step;
  v_first_locked jsonb := (
    SELECT jsonb_object_agg(found.lease_name, found.place)
      FROM (SELECT s.lease_name, min(s.place) AS place FROM unnest(p_steps) AS s
             -- Hashed; without IS TRUE, a join would compare each row with all others.
             WHERE s.is_row_changed AND (s.row_id IN (SELECT unnest(p_locked))) IS TRUE GROUP BY s.lease_name) AS found);
  v_place integer;
BEGIN
  FOREACH v_step IN ARRAY p_steps LOOP
    v_place := v_first_locked ->> v_step.lease_name;
    IF v_place IS NULL OR v_step.place BETWEEN 1 AND v_place - 1 THEN
      v_steps := v_steps || v_step;
    ELSIF v_step.place = 1 THEN
      v_step.is_row_changed := false;
      IF v_step.stream_state <> 'begun' THEN
        v_step.stream_state := 'recheck';
        v_step.wait_seconds := NULL;
        v_step.is_held := v_step.is_continued;
        v_step.is_settled := false;
        v_step.is_given := false;
        v_step.is_begun_now := false;
      END IF;
      v_steps := v_steps || v_step;
    END IF;
  END LOOP;
  RETURN v_steps;
END
$$;
REVOKE ALL ON FUNCTION leasehold.pass_over_locked(leasehold.stream_step[], uuid[]) FROM PUBLIC;
