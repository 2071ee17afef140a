-- What people did to streams, one row per intervention. Rows are never changed or deleted. An intervention that ends an
-- intent is on the ledger too.
CREATE TABLE leasehold.stream_interventions (
  intervention_id uuid NOT NULL,
  target text COLLATE "C" NOT NULL,
  stream text COLLATE "C" NOT NULL,
  action text NOT NULL,
  operator text NOT NULL,
  note text NOT NULL,
  intent_id uuid,
  paused_by text,
  done_at timestamptz NOT NULL,

  CONSTRAINT stream_interventions_pkey PRIMARY KEY (intervention_id),
  CONSTRAINT stream_interventions_action_known CHECK (action IN ('pause', 'resume', 'skip'))
);

CREATE INDEX stream_interventions_of_stream ON leasehold.stream_interventions (target, stream, intervention_id);

COMMENT ON TABLE leasehold.stream_interventions IS 'What people did to streams: pause, resume, skip. Append-only.';
COMMENT ON COLUMN leasehold.stream_interventions.intent_id IS
  'The head that was skipped, or the failed intent whose pause was ended.';
COMMENT ON COLUMN leasehold.stream_interventions.paused_by IS 'The person whose pause was ended.';

GRANT SELECT ON leasehold.stream_interventions
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
