"""Bringing a database to the schema of this release.

A run is a row of transactions: roles with version tables, each numbered migration, all changed
functions and views together, and the upkeep. Each transaction first takes one advisory lock and
then looks anew at what is applied, so any number of runs may be started at once, also through a
transaction pooler: each step is done once, by whoever comes first.

Everything but the roles is done as `leasehold_owner`. After a numbered migration all functions and
views are applied again, because it may have dropped some of them to change what lies below.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from leasehold.domain.errors import DatabaseUnavailable, MigrationError
from leasehold.store.postgres.address import connect
from leasehold.store.postgres.schema_version import (
    NOTHING_APPLIED,
    pending,
    read,
)
from leasehold.store.postgres.sources import Sources, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

__all__ = ["Sources", "Step", "migrate", "plan", "script"]

OLDEST_POSTGRES = 15
MIGRATION_LOCK = 0x6C65_6173_6568_6C64  # any constant that nobody else uses; "leasehld" in ASCII

# Another run may take as long as an index build. A table's lock is different: whoever waits for it
# makes every later reader wait too, so we give up soon and say so.
_LOCK = f"""\
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = '10min';
SELECT pg_catalog.pg_advisory_xact_lock({MIGRATION_LOCK});
SET LOCAL lock_timeout = '5s';
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, leasehold, pg_temp;
"""
_AS_OWNER = "SET LOCAL ROLE leasehold_owner;\n"
# A function may name functions and views of later files.
_UNCHECKED_BODIES = "SET LOCAL check_function_bodies = off;\n"

_RECORD_MIGRATION = sql.SQL("""\
INSERT INTO leasehold.schema_migrations (version, name, checksum, oldest_release)
  VALUES ({}, {}, {}, {});
DELETE FROM leasehold.schema_sources WHERE path LIKE 'functions/%' OR path LIKE 'views/%';
""")
_RECORD_SOURCE = sql.SQL("""\
INSERT INTO leasehold.schema_sources (path, checksum, release) VALUES ({}, {}, {})
  ON CONFLICT (path) DO UPDATE SET checksum = excluded.checksum, release = excluded.release,
                                   applied_at = clock_timestamp();
""")

_SCRIPT_HEADER = """\
-- The schema of Leasehold {release} (version {version}) for an empty database, in one transaction.
-- Run it as a login with CREATEROLE and with CREATE on the database. Afterwards let the login that
-- runs `leasehold migrate` for later releases do so without these privileges:
--     GRANT leasehold_owner TO <login>;
-- and give each login of the application the one role that it needs, for example:
--     GRANT leasehold_executor TO <login>;
"""
_SCRIPT_GUARD = """\
DO $guard$
BEGIN
  IF EXISTS (SELECT FROM leasehold.schema_migrations) THEN
    RAISE EXCEPTION 'this database already has the schema of Leasehold; nothing was changed'
      USING HINT = 'Run: leasehold migrate';
  END IF;
END
$guard$;
"""


def plan(connection: psycopg.Connection[Any], *, sources: Sources | None = None) -> list[Step]:
    """Say what `migrate` would apply now, in order. Changes nothing."""
    with _explained("reading what is applied"):
        return pending(sources or Sources(), read(connection))


def migrate(
    database_url: str,
    *,
    report: Callable[[str], None] | None = None,
    sources: Sources | None = None,
) -> list[Step]:
    """Apply what is missing and return it. Safe to run at any time, and many times at once."""
    sources = sources or Sources()
    applied: list[Step] = []
    with connect(database_url, application_name="leasehold migrate") as connection:
        _refuse_old_server(connection)
        # Whatever this login's defaults are: what is applied must be read anew after the lock.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        while batch := _apply_next(connection, sources):
            if batch[0] in applied:
                raise MigrationError(f"{batch[0].name} was applied, but the database denies it")
            applied += batch
            for step in batch:
                if report:
                    report(f"applied {step.name}")
        _keep_up(connection, sources)
    return applied


def script(*, sources: Sources | None = None) -> str:
    """Give the whole schema as one SQL script for any client, for somebody with more privileges."""
    sources = sources or Sources()
    steps = pending(sources, NOTHING_APPLIED)
    parts = [_SCRIPT_HEADER.format(release=sources.release, version=sources.version)]
    parts += ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;", _LOCK]
    while batch := _first_batch(steps):
        steps = steps[len(batch) :]
        parts += [text for _, text in _statements(batch, sources.release)]
        if batch[0].kind == "roles":
            parts.append(_SCRIPT_GUARD)
    parts += [f"{_AS_OWNER}{step.sql}" for step in sources.upkeep]
    return "\n".join([*parts, "COMMIT;\n"])


def _apply_next(connection: psycopg.Connection[Any], sources: Sources) -> list[Step]:
    """Apply the first transaction's worth of what is pending; nothing when all is applied."""
    with _explained("committing the step"), connection.transaction():
        with _explained("waiting for another migration to end"):
            connection.execute(_LOCK.encode())
        batch = _first_batch(plan(connection, sources=sources))
        for step, text in _statements(batch, sources.release):
            with _explained(step.name, text):
                connection.execute(text.encode())
    return batch


def _keep_up(connection: psycopg.Connection[Any], sources: Sources) -> None:
    with connection.transaction():
        connection.execute(_LOCK.encode())
        for step in sources.upkeep:
            with _explained(step.name, step.sql):
                connection.execute(f"{_AS_OWNER}{step.sql}".encode())


def _first_batch(steps: Sequence[Step]) -> list[Step]:
    """Take what belongs into one transaction."""
    if steps and steps[0].kind == "migration":
        return [steps[0]]
    preparation = list(takewhile(lambda step: step.kind in {"roles", "versions"}, steps))
    return preparation or list(steps)


def _statements(batch: Sequence[Step], release: str) -> Iterator[tuple[Step, str]]:
    """Give the SQL of one transaction in order, each text with the step that it belongs to."""
    for step in batch:
        before = "" if step.kind == "roles" else _AS_OWNER
        before += _UNCHECKED_BODIES if step.kind == "function" else ""
        yield step, f"{before}{step.sql.rstrip()}\n"
    for step in batch:
        if step.kind == "migration":
            record = _RECORD_MIGRATION.format(
                step.version, step.title, step.checksum, step.oldest_release
            )
        else:
            record = _RECORD_SOURCE.format(step.name, step.checksum, release)
        yield step, record.as_string()


def _refuse_old_server(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version // 10_000
    if version < OLDEST_POSTGRES:
        raise MigrationError(
            f"this is PostgreSQL {version}; Leasehold needs {OLDEST_POSTGRES} or newer"
        )


@contextmanager
def _explained(what: str, text: str = "") -> Generator[None]:
    """Turn an error of the database into one of ours that says what to do next."""
    try:
        yield
    except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
        raise MigrationError(
            f"{what}: gave up waiting for a lock that another session holds, so as not to hold up "
            "everyone behind us. Nothing of this step was applied: run `leasehold migrate` again"
        ) from error
    except errors.InsufficientPrivilege as error:
        raise MigrationError(
            f"{what}: {error.diag.message_primary}. Have a DBA run the output of `leasehold "
            "migrate --print` (for a new database) and GRANT leasehold_owner to this login"
        ) from error
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
            raise DatabaseUnavailable(
                f"{what}: the connection was lost; run `leasehold migrate` again"
            ) from error
        raise MigrationError(f"{what} failed and was rolled back: {_where(error, text)}") from error


def _where(error: psycopg.Error, text: str) -> str:
    message = f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
    if not error.diag.statement_position:
        return message
    before = text[: int(error.diag.statement_position) - 1]
    line = before.removeprefix(_AS_OWNER).removeprefix(_UNCHECKED_BODIES).count("\n") + 1
    return f"{message} at line {line}"
