-- Refuse a row that breaks a rule of its table (23514), with the name of the rule as the constraint. Volatile, so
-- that the planner never evaluates it in advance. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.refuse_row(p_table text, p_rule text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'a row of % violates the rule %', p_table, p_rule
    USING ERRCODE = '23514', SCHEMA = 'leasehold', TABLE = p_table, CONSTRAINT = p_rule;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_row(text, text) FROM PUBLIC;
