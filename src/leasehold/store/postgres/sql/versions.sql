-- Create the two tables that record what was applied, so that even the first numbered migration can be
-- recorded. A second run changes nothing. Every runtime role may read them: at start it checks that the schema
-- is new enough for its release.
CREATE TABLE IF NOT EXISTS leasehold.schema_migrations (
  version    integer     NOT NULL,
  name       text        NOT NULL,
  checksum   text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  applied_by text        NOT NULL DEFAULT session_user,
  oldest_release text,

  CONSTRAINT schema_migrations_pkey PRIMARY KEY (version),
  CONSTRAINT schema_migrations_version_check CHECK (version > 0)
);
COMMENT ON TABLE leasehold.schema_migrations IS
  'The numbered migrations that were applied, with the checksum of the file as it was then, and the oldest '
  'release that can run after it (NULL: the same as before it).';

CREATE TABLE IF NOT EXISTS leasehold.schema_sources (
  path       text        NOT NULL,
  checksum   text        NOT NULL,
  release    text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),

  CONSTRAINT schema_sources_pkey PRIMARY KEY (path)
);
COMMENT ON TABLE leasehold.schema_sources IS
  'The repeatable sources (functions, views) as last applied, and the release that applied them: an '
  'older release does not overwrite what a newer one wrote.';

GRANT SELECT ON leasehold.schema_migrations, leasehold.schema_sources
  TO leasehold_ingest, leasehold_executor, leasehold_operator, leasehold_readonly, leasehold_auditor,
     leasehold_api;
