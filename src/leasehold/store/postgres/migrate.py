"""Migrates a database to the schema of this release.

A run is a series of transactions: roles with version tables, each numbered migration, all changed
functions and views together, and the upkeep. Each transaction takes an advisory lock first and then
reads what is applied, so any number of runs may start at once, also through a transaction pooler:
each step is applied once.

All steps except the roles run as `leasehold_owner`. After a numbered migration all functions and
views are applied again, because it may have dropped some of them to change a table.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from leasehold.domain.errors import DatabaseUnavailable, MigrationError
from leasehold.store.postgres.database_url import connect
from leasehold.store.postgres.schema_version import (
    EMPTY_DATABASE,
    pending,
    read,
)
from leasehold.store.postgres.sql_files import SqlFiles, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

__all__ = ["SqlFiles", "Step", "migrate", "plan", "script"]

OLDEST_POSTGRES = 15
MIGRATION_LOCK = 0x6C65_6173_6568_6C64  # "leasehld" in ASCII: a key that nobody else uses

# Another run may take as long as an index build, so we wait long for its lock. While we wait for
# the lock of a table, every later reader of the table waits too, so there we give up soon.
_LOCK = f"""\
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = '10min';
SELECT pg_catalog.pg_advisory_xact_lock({MIGRATION_LOCK});
SET LOCAL lock_timeout = '5s';
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, leasehold, pg_temp;
"""
_AS_OWNER = "SET LOCAL ROLE leasehold_owner;\n"
# A function may use functions and views of later files.
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
-- Run it as a login with CREATEROLE, and with CREATE on the database. Then the login that runs
-- `leasehold migrate` for later releases does not need these privileges:
--     GRANT leasehold_owner TO <login>;
-- Give each login of the application the role that it needs, for example:
--     GRANT leasehold_executor TO <login>;
"""
_SCRIPT_GUARD = """\
DO $guard$
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'the encoding of the database is %, but Leasehold needs UTF8',
      current_setting('server_encoding') USING ERRCODE = 'feature_not_supported';
  END IF;
  IF EXISTS (SELECT FROM leasehold.schema_migrations) THEN
    RAISE EXCEPTION 'this database already has the schema of Leasehold; nothing was changed'
      USING HINT = 'Run: leasehold migrate';
  END IF;
END
$guard$;
"""


def plan(connection: psycopg.Connection[Any], *, files: SqlFiles | None = None) -> list[Step]:
    """List what `migrate` would apply now, in order. Changes nothing."""
    _require_supported_server(connection)
    with _explained("reading the schema version"):
        return pending(files or SqlFiles(), read(connection))


def migrate(
    database_url: str,
    *,
    report: Callable[[str], None] | None = None,
    files: SqlFiles | None = None,
) -> list[Step]:
    """Apply the missing steps and return them. Safe to run at any time, also concurrently."""
    files = files or SqlFiles()
    applied: list[Step] = []
    with connect(database_url, application_name="leasehold migrate") as connection:
        while batch := _apply_next(connection, files):
            if batch[0] in applied:
                raise MigrationError(f"{batch[0].name} was applied, but is not recorded as applied")
            applied += batch
            for step in batch:
                if report:
                    report(f"applied {step.name}")
        _run_upkeep(connection, files)
    return applied


def script(*, files: SqlFiles | None = None) -> str:
    """Return the whole schema as an SQL script, for someone with more privileges to run."""
    files = files or SqlFiles()
    steps = pending(files, EMPTY_DATABASE)
    parts = [_SCRIPT_HEADER.format(release=files.release, version=files.version)]
    parts += ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;", _LOCK]
    while batch := _first_batch(steps):
        steps = steps[len(batch) :]
        parts += [text for _, text in _statements(batch, files.release)]
        if batch[0].kind == "roles":
            parts.append(_SCRIPT_GUARD)
    parts += [f"{_AS_OWNER}{step.sql}" for step in files.upkeep]
    return "\n".join([*parts, "COMMIT;\n"])


def _apply_next(connection: psycopg.Connection[Any], files: SqlFiles) -> list[Step]:
    """Apply the next transaction of pending steps, and return them; none if all are applied."""
    with _explained("committing the step"), connection.transaction():
        with _explained("waiting for another migration"):
            connection.execute(_LOCK.encode())
        batch = _first_batch(plan(connection, files=files))
        for step, text in _statements(batch, files.release):
            with _explained(step.name, text):
                connection.execute(text.encode())
    return batch


def _run_upkeep(connection: psycopg.Connection[Any], files: SqlFiles) -> None:
    with connection.transaction():
        connection.execute(_LOCK.encode())
        for step in files.upkeep:
            with _explained(step.name, step.sql):
                connection.execute(f"{_AS_OWNER}{step.sql}".encode())


def _first_batch(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of the next transaction."""
    if steps and steps[0].kind == "migration":
        return [steps[0]]
    preparation = list(takewhile(lambda step: step.kind in {"roles", "versions"}, steps))
    return preparation or list(steps)


def _statements(batch: Sequence[Step], release: str) -> Iterator[tuple[Step, str]]:
    """Yield the SQL of one transaction, in order, each text with its step."""
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


def _require_supported_server(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version // 10_000
    if version < OLDEST_POSTGRES:
        raise MigrationError(
            f"the server is PostgreSQL {version}, but Leasehold needs {OLDEST_POSTGRES} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise MigrationError(
            f"the encoding of the database is {encoding}, but Leasehold needs UTF8: create a "
            "database with TEMPLATE template0 ENCODING 'UTF8'"
        )


@contextmanager
def _explained(what: str, text: str = "") -> Generator[None]:
    """Raise MigrationError, with advice, for an error of the database."""
    try:
        yield
    except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
        raise MigrationError(
            f"{what}: gave up waiting for a lock of another session, because others would have "
            "to wait behind us. This step was not applied: run `leasehold migrate` again"
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
