-- What people did to intents without ending them or writing to their ledger, one row per intervention. Rows are never changed or
-- deleted. Every other intervention is a row of the ledger.
CREATE TABLE leasehold.intent_interventions (
  intervention_id uuid NOT NULL,
  intent_id uuid NOT NULL,
  action text NOT NULL,
  operator text NOT NULL,
  note text NOT NULL,
  done_at timestamptz NOT NULL,

  CONSTRAINT intent_interventions_pkey PRIMARY KEY (intervention_id),
  CONSTRAINT intent_interventions_action_known CHECK (action IN ('retry_now'))
);

CREATE INDEX intent_interventions_of_intent ON leasehold.intent_interventions (intent_id, intervention_id);

COMMENT ON TABLE leasehold.intent_interventions IS
  'What people did to intents without a ledger row: retry_now. Append-only.';

GRANT SELECT ON leasehold.intent_interventions
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
