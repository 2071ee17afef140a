"""What a database says was applied to it, and what follows from that for this release.

The rule between releases: the database may be newer than a running process, never older. So an
older release neither migrates a newer database nor puts its own functions over the newer ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import errors
from psycopg.rows import tuple_row

from leasehold.domain.errors import MigrationError
from leasehold.store.postgres.sources import Sources, Step, is_newer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

# The privilege called MEMBER includes, since PostgreSQL 16, members that may not SET ROLE.
_READ_CATALOG = """
SELECT coalesce((SELECT pg_has_role(oid, CASE WHEN current_setting('server_version_num')::integer
                                              >= 160000 THEN 'SET' ELSE 'MEMBER' END)
                   FROM pg_catalog.pg_roles WHERE rolname = 'leasehold_owner'), false),
       (SELECT count(*) = 2
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = 'leasehold' AND c.relname IN ('schema_migrations', 'schema_sources'))
"""
_READ_APPLIED = """
SELECT (SELECT coalesce(jsonb_object_agg(version, checksum), '{}')
          FROM leasehold.schema_migrations),
       (SELECT coalesce(jsonb_object_agg(path, jsonb_build_array(checksum, release)), '{}')
          FROM leasehold.schema_sources)
"""
_ABSENT = (errors.UndefinedTable, errors.InvalidSchemaName)


@dataclass(frozen=True, slots=True)
class Applied:
    """The numbered migrations (version to checksum), and the repeatable sources (path to both)."""

    migrations: Mapping[int, str]
    sources: Mapping[str, tuple[str, str]]  # checksum, release
    is_owner: bool = False  # whether this login may act as leasehold_owner

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


def check_schema(connection: psycopg.Connection[Any], *, sources: Sources | None = None) -> None:
    """Raise MigrationError when the database is older than this release; a newer one is fine."""
    cursor = connection.cursor(row_factory=tuple_row)
    try:
        with connection.transaction():
            row = cursor.execute(_READ_APPLIED).fetchone()
    except (*_ABSENT, errors.InsufficientPrivilege) as error:
        row = _unreadable(error)
    _refuse_older(sources or Sources(), _applied(row))


async def check_schema_async(
    connection: psycopg.AsyncConnection[Any], *, sources: Sources | None = None
) -> None:
    """Do the same on an asynchronous connection."""
    cursor = connection.cursor(row_factory=tuple_row)
    try:
        async with connection.transaction():
            row = await (await cursor.execute(_READ_APPLIED)).fetchone()
    except (*_ABSENT, errors.InsufficientPrivilege) as error:
        row = _unreadable(error)
    _refuse_older(sources or Sources(), _applied(row))


def _applied(row: tuple[Any, ...] | None, *, is_owner: bool = False) -> Applied:
    if row is None:
        return NOTHING_APPLIED
    migrations: dict[str, str] = row[0]
    recorded: dict[str, list[str]] = row[1]
    return Applied(
        {int(version): checksum for version, checksum in migrations.items()},
        {path: (checksum, release) for path, (checksum, release) in recorded.items()},
        is_owner,
    )


def _unreadable(error: psycopg.Error) -> None:
    if isinstance(error, errors.InsufficientPrivilege):
        raise MigrationError(
            "this login may not read the schema's version: grant it one of the roles "
            "leasehold_ingest, leasehold_executor, leasehold_operator, leasehold_readonly"
        ) from error


def _refuse_older(sources: Sources, applied: Applied) -> None:
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
            f"{sources.release} needs ({outdated[0]} for one): run `leasehold migrate`"
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
