"""What was applied to a database, and whether this release can migrate it or run on it.

The rule between releases: the database may be newer than a running process, never older. So an
older release neither migrates a newer database nor overwrites its functions. A migration that
older releases cannot run on names the oldest one that can; older ones then refuse to start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import tuple_row

from leasehold.domain.errors import AccessDenied, MigrationError, SchemaTooNew, SchemaTooOld
from leasehold.observe.logs import get_logger
from leasehold.store.postgres.errors import role_advice
from leasehold.store.postgres.query import as_tuples
from leasehold.store.postgres.sql_files import SqlFiles, Step, is_newer, newest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from leasehold.store.postgres.query import Query

# Since PostgreSQL 16 the privilege MEMBER also includes members that may not SET ROLE.
_READ_CATALOG = """
SELECT coalesce((SELECT pg_has_role(oid, CASE WHEN current_setting('server_version_num')::integer
                                              >= 160000 THEN 'SET' ELSE 'MEMBER' END)
                   FROM pg_catalog.pg_roles WHERE rolname = 'leasehold_owner'), false),
       (SELECT count(*) = 2
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = 'leasehold' AND c.relname IN ('schema_migrations', 'schema_sources'))
"""
# As text, because the connections of a pool do not parse JSON.
_READ_SCHEMA_VERSION = """
SELECT (SELECT coalesce(
                 jsonb_object_agg(version, jsonb_build_array(checksum, oldest_release)), '{}')
          FROM leasehold.schema_migrations)::text,
       (SELECT coalesce(jsonb_object_agg(path, jsonb_build_array(checksum, release)), '{}')
          FROM leasehold.schema_sources)::text
"""

_RUNTIME_ROLES = tuple(
    f"leasehold_{name}" for name in ("ingest", "executor", "operator", "readonly", "auditor", "api")
)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The applied migrations (version to checksum) and repeatable files (path to both)."""

    migrations: Mapping[int, str]
    files: Mapping[str, tuple[str, str]]  # checksum, release
    is_owner: bool = False  # whether this login may act as leasehold_owner
    oldest_release: str | None = None  # that can run on the schema; None: any

    @property
    def version(self) -> int:
        """The number of the newest migration; 0 for none."""
        return max(self.migrations, default=0)

    def is_newer_than(self, files: SqlFiles) -> bool:
        """Whether a newer release than this one has migrated the database."""
        releases = {release for _, release in self.files.values()}
        newer = any(is_newer(release, than=files.release) for release in releases)
        return newer or self.version > files.version

    def lacks(self, step: Step) -> bool:
        """Whether this text of a repeatable file has yet to be applied."""
        return self.files.get(step.name, ("", ""))[0] != step.checksum


EMPTY_DATABASE = SchemaVersion({}, {})


def read(connection: psycopg.Connection[Any]) -> SchemaVersion:
    """Read the version, as the owner if this login may, because its own rights may not suffice."""
    cursor = connection.cursor(row_factory=tuple_row)
    with connection.transaction(force_rollback=True):
        is_owner, has_tables = cursor.execute(_READ_CATALOG).fetchone() or (False, False)
        if not has_tables:
            return SchemaVersion({}, {}, is_owner)
        if is_owner:
            cursor.execute("SET LOCAL ROLE leasehold_owner")
        return _schema_version(cursor.execute(_READ_SCHEMA_VERSION).fetchone(), is_owner=is_owner)


def pending(files: SqlFiles, current: SchemaVersion) -> list[Step]:
    """List the steps to apply, in order, or raise MigrationError."""
    if current.is_newer_than(files):
        raise SchemaTooNew(
            f"the database (version {current.version}) was migrated by a newer release than this "
            f"one ({files.release}, version {files.version}): use that release to migrate"
        )
    _require_same_history(files, current)
    steps: list[Step] = []
    if not current.is_owner or any(current.lacks(step) for step in files.preparation):
        steps += files.preparation
    migrations = [step for step in files.migrations if step.version not in current.migrations]
    steps += migrations
    steps += [step for step in files.repeatables if migrations or current.lacks(step)]
    return steps


async def check_schema(
    query: Query, files: SqlFiles | None = None, *, role: str | None = None
) -> None:
    """Raise MigrationError if this release cannot run on the schema; log if the schema is newer.

    `role` is what the caller needs, for the error if the login has no role at all.
    """
    try:
        [row] = await query.rows(as_tuples, _READ_SCHEMA_VERSION)
    except SchemaTooOld:  # the tables do not exist
        row = None
    except AccessDenied as error:
        roles = _RUNTIME_ROLES if role is None else (role,)
        raise AccessDenied(
            f"this login may not read the schema's version: {role_advice(roles)}", roles=roles
        ) from error
    files = files or SqlFiles()
    current = _schema_version(row)
    require_usable(files, current)
    if current.is_newer_than(files):
        _log.warning(
            "schema_newer",
            schema_version=current.version,
            release=files.release,
            advice="a newer release migrated the database; upgrade this instance to it",
        )


def _schema_version(row: tuple[Any, ...] | None, *, is_owner: bool = False) -> SchemaVersion:
    if row is None:
        return EMPTY_DATABASE
    migrations: dict[str, list[str]] = json.loads(row[0])
    recorded: dict[str, list[str]] = json.loads(row[1])
    return SchemaVersion(
        {int(version): checksum for version, (checksum, _) in migrations.items()},
        {path: (checksum, release) for path, (checksum, release) in recorded.items()},
        is_owner,
        newest(oldest for _, oldest in migrations.values() if oldest),
    )


def require_usable(files: SqlFiles, current: SchemaVersion) -> None:
    """Refuse a schema that this release cannot run on, and say what to do."""
    if current.oldest_release and is_newer(current.oldest_release, than=files.release):
        raise SchemaTooNew(
            f"release {files.release} is too old for the database, which is at schema version "
            f"{current.version}: upgrade it to {current.oldest_release} or newer"
        )
    if current.is_newer_than(files):
        return
    if current.version < files.version:
        raise SchemaTooOld(
            f"the database is at schema version {current.version}, release {files.release} "
            f"needs {files.version}: run `leasehold migrate`"
        )
    outdated = [step.name for step in files.repeatables if current.lacks(step)]
    if outdated:
        raise SchemaTooOld(
            f"{len(outdated)} functions or views in the database are older than release "
            f"{files.release} needs, such as {outdated[0]}: run `leasehold migrate`"
        )


def _require_same_history(files: SqlFiles, current: SchemaVersion) -> None:
    known = {step.version: step for step in files.migrations}
    for version, checksum in sorted(current.migrations.items()):
        step = known.get(version)
        if step is None:
            raise MigrationError(f"migration {version:04} was applied, but its file is missing")
        if step.checksum != checksum:
            raise MigrationError(
                f"{step.name} was changed after it was applied: restore the file and put the "
                "change into a new migration"
            )
    for step in files.migrations:
        if step.version < current.version and step.version not in current.migrations:
            raise MigrationError(
                f"{step.name} comes before version {current.version}, which is already applied: "
                "give it the next free number"
            )
