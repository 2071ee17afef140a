-- Refuse a row that breaks a rule of its table (23514), under the name of the rule. Volatile, so that nobody works
-- it out ahead of time. Locks nothing.
CREATE OR REPLACE FUNCTION leasehold.refuse_row(p_table text, p_rule text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'a row of % breaks the rule %', p_table, p_rule
    USING ERRCODE = '23514', SCHEMA = 'leasehold', TABLE = p_table, CONSTRAINT = p_rule;
END
$$;
REVOKE ALL ON FUNCTION leasehold.refuse_row(text, text) FROM PUBLIC;
