-- What judge_outcomes decides about one outcome. place, begun_at and known_reference are those of the pending row.
-- refusal: why the outcome is not applied, NULL if it is. The others say what is written then: new_attempt_no, new_state
-- and new_reason are those of the ledger row (without a state there is none), and next_due_at is NULL if the intent ends.
CREATE TYPE leasehold.judgement AS (
  place tid,
  begun_at timestamptz,
  known_reference text,
  refusal text,
  new_attempt_no integer,
  new_state text,
  new_reason text,
  next_due_at timestamptz
);

COMMENT ON TYPE leasehold.judgement IS 'A decision about an outcome, passed between functions; not part of the interface.';
