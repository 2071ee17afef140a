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

from leasehold.domain.errors import AccessDenied, MigrationError
from leasehold.observe.logs import get_logger
from leasehold.store.postgres.query import as_tuples
from leasehold.store.postgres.sources import Sources, Step, is_newer, newest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from leasehold.store.postgres.query import Query

# The privilege called MEMBER includes, since PostgreSQL 16, members that may not SET ROLE.
_READ_CATALOG = """
SELECT coalesce((SELECT pg_has_role(oid, CASE WHEN current_setting('server_version_num')::integer
                                              >= 160000 THEN 'SET' ELSE 'MEMBER' END)
                   FROM pg_catalog.pg_roles WHERE rolname = 'leasehold_owner'), false),
       (SELECT count(*) = 2
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = 'leasehold' AND c.relname IN ('schema_migrations', 'schema_sources'))
"""
# As text, because the connections of a pool do not parse JSON.
_READ_APPLIED = """
SELECT (SELECT coalesce(
                 jsonb_object_agg(version, jsonb_build_array(checksum, oldest_release)), '{}')
          FROM leasehold.schema_migrations)::text,
       (SELECT coalesce(jsonb_object_agg(path, jsonb_build_array(checksum, release)), '{}')
          FROM leasehold.schema_sources)::text
"""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """The numbered migrations (version to checksum), and the repeatable sources (path to both)."""

    migrations: Mapping[int, str]
    sources: Mapping[str, tuple[str, str]]  # checksum, release
    is_owner: bool = False  # whether this login may act as leasehold_owner
    oldest_release: str | None = None  # that can run on the schema; None: any

    @property
    def version(self) -> int:
        """The schema version of the database; 0 for none."""
        return max(self.migrations, default=0)

    def is_newer_than(self, sources: Sources) -> bool:
        """Whether a newer release than this one has been here."""
        releases = {release for _, release in self.sources.values()}
        newer = any(is_newer(release, than=sources.release) for release in releases)
        return newer or self.version > sources.version

    def lacks(self, step: Step) -> bool:
        """Whether this very text of a repeatable source has yet to be applied."""
        return self.sources.get(step.name, ("", ""))[0] != step.checksum


NOTHING_APPLIED = Applied({}, {})


def read(connection: psycopg.Connection[Any]) -> Applied:
    """Read all, as the owner where this login may, since its own rights need not reach so far."""
    cursor = connection.cursor(row_factory=tuple_row)
    with connection.transaction(force_rollback=True):
        is_owner, has_tables = cursor.execute(_READ_CATALOG).fetchone() or (False, False)
        if not has_tables:
            return Applied({}, {}, is_owner)
        if is_owner:
            cursor.execute("SET LOCAL ROLE leasehold_owner")
        return _applied(cursor.execute(_READ_APPLIED).fetchone(), is_owner=is_owner)


def pending(sources: Sources, applied: Applied) -> list[Step]:
    """List what has to be applied, in order, or refuse."""
    if applied.is_newer_than(sources):
        raise MigrationError(
            f"the database (version {applied.version}) was migrated by a newer release than this "
            f"one ({sources.release}, version {sources.version}): use that release to migrate"
        )
    _refuse_edited(sources, applied)
    steps: list[Step] = []
    if not applied.is_owner or any(applied.lacks(step) for step in sources.preparation):
        steps += sources.preparation
    migrations = [step for step in sources.migrations if step.version not in applied.migrations]
    steps += migrations
    steps += [step for step in sources.repeatables if migrations or applied.lacks(step)]
    return steps


async def check_schema(query: Query, sources: Sources | None = None) -> None:
    """Raise MigrationError if this release cannot run on the schema; log if the schema is newer."""
    try:
        [row] = await query.rows(as_tuples, _READ_APPLIED)
    except MigrationError:  # the tables do not exist
        row = None
    except AccessDenied as error:
        raise AccessDenied(
            "this login may not read the schema's version: grant it one of the roles "
            "leasehold_ingest, leasehold_executor, leasehold_operator, leasehold_readonly"
        ) from error
    sources = sources or Sources()
    applied = _applied(row)
    _refuse_unfit(sources, applied)
    if applied.is_newer_than(sources):
        _log.warning(
            "schema_newer",
            schema_version=applied.version,
            release=sources.release,
            advice="a newer release migrated the database; upgrade this instance to it",
        )


def _applied(row: tuple[Any, ...] | None, *, is_owner: bool = False) -> Applied:
    if row is None:
        return NOTHING_APPLIED
    migrations: dict[str, list[str]] = json.loads(row[0])
    recorded: dict[str, list[str]] = json.loads(row[1])
    return Applied(
        {int(version): checksum for version, (checksum, _) in migrations.items()},
        {path: (checksum, release) for path, (checksum, release) in recorded.items()},
        is_owner,
        newest(oldest for _, oldest in migrations.values() if oldest),
    )


def _refuse_unfit(sources: Sources, applied: Applied) -> None:
    """Refuse a schema that this release cannot run on, and say what to do."""
    if applied.oldest_release and is_newer(applied.oldest_release, than=sources.release):
        raise MigrationError(
            f"release {sources.release} is too old for the database, which is at schema version "
            f"{applied.version}: upgrade it to {applied.oldest_release} or newer"
        )
    if applied.is_newer_than(sources):
        return
    if applied.version < sources.version:
        raise MigrationError(
            f"the database is at schema version {applied.version}, release {sources.release} "
            f"needs {sources.version}: run `leasehold migrate`"
        )
    outdated = [step.name for step in sources.repeatables if applied.lacks(step)]
    if outdated:
        raise MigrationError(
            f"{len(outdated)} functions or views in the database are older than release "
            f"{sources.release} needs, such as {outdated[0]}: run `leasehold migrate`"
        )


def _refuse_edited(sources: Sources, applied: Applied) -> None:
    known = {step.version: step for step in sources.migrations}
    for version, checksum in sorted(applied.migrations.items()):
        step = known.get(version)
        if step is None:
            raise MigrationError(f"migration {version:04} was applied, but its file is missing")
        if step.checksum != checksum:
            raise MigrationError(
                f"{step.name} was changed after it had been applied; restore the file as it was "
                "and put the change into a new migration"
            )
    for step in sources.migrations:
        if step.version < applied.version and step.version not in applied.migrations:
            raise MigrationError(
                f"{step.name} comes before version {applied.version}, which is already applied; "
                "give it the next free number"
            )
