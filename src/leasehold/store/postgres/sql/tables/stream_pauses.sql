-- Why a stream stands still: one row for each reason. The stream goes on when the last one has ended. A person has one pause
-- per stream, named after the operator; each failed intent has one, named after the intent, if its contract says block or
-- block_for. leases.paused_until is the latest end, which executors read; both are written under the lock of the lease row.
-- A reason that is over may stay until its stream is claimed, changed or pruned.
CREATE TABLE leasehold.stream_pauses (
  lease_name text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  paused_since timestamptz NOT NULL,
  paused_until timestamptz NOT NULL,
  note text,

  CONSTRAINT stream_pauses_pkey PRIMARY KEY (lease_name, kind, name),
  CONSTRAINT stream_pauses_kind_known CHECK (kind IN ('failure', 'person')),
  CONSTRAINT stream_pauses_note_bounded CHECK (length(note) <= 2000)
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE leasehold.stream_pauses IS 'Why a stream stands still, one row per reason.';
COMMENT ON COLUMN leasehold.stream_pauses.name IS 'kind person: the operator. kind failure: the id of the failed intent.';
COMMENT ON COLUMN leasehold.stream_pauses.paused_until IS 'When the reason ends by itself; infinity: only if a person ends it.';

GRANT SELECT ON leasehold.stream_pauses
  TO leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor;
