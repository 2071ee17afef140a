"""Examines a database for `leasehold doctor`: reads only, one function per check.

A check that the login may not make is a warning, not an end: the others still say what they see.
The recorded version says which migrations ran, not what is left of them: `pg_restore --clean` can
leave tables without their primary keys, in a schema whose version is right.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from leasehold.domain.errors import LeaseholdError, MigrationError
from leasehold.store.database import Check
from leasehold.store.postgres.database_url import connect, unverified_hosts
from leasehold.store.postgres.migrate import OLDEST_POSTGRES
from leasehold.store.postgres.schema_version import read, require_usable
from leasehold.store.postgres.sql_files import SqlFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Connection = psycopg.Connection[Any]


# Only these begin a line like this in our files.
_DECLARED = re.compile(
    r"^(?:CREATE (?:OR REPLACE |UNIQUE )?(?:TABLE|INDEX|TRIGGER)(?: IF NOT EXISTS)?|  CONSTRAINT)"
    r" (?:leasehold\.)?(\w+)",
    re.MULTILINE,
)
# The partitions of the ledger need no look: without theirs, an index of the whole table is invalid.
_PRESENT = """
SELECT found.name, bool_and(found.works)
  FROM pg_catalog.pg_namespace n
 CROSS JOIN LATERAL (
   SELECT c.relname, true
     FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
    UNION ALL
   SELECT c.relname, i.indisvalid
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
    WHERE c.relnamespace = n.oid
    UNION ALL
   SELECT k.conname, k.convalidated
     FROM pg_catalog.pg_constraint k WHERE k.connamespace = n.oid
    UNION ALL
   SELECT t.tgname, t.tgenabled <> 'D'
     FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = n.oid
 ) AS found (name, works)
 WHERE n.nspname = 'leasehold'
 GROUP BY found.name
"""


def declared(files: SqlFiles) -> frozenset[str]:
    """Return the names of all tables of a release, their constraints, indexes and triggers."""
    tables = [path.read_text(encoding="utf-8") for path in (files.root / "tables").glob("*.sql")]
    steps = [step.sql for step in (*files.preparation, *files.repeatables)]
    return frozenset(name for text in (*tables, *steps) for name in _DECLARED.findall(text))


def missing_or_broken(connection: psycopg.Connection[Any], files: SqlFiles) -> list[str]:
    """Return the names of what is declared and not there, not valid or switched off, sorted."""
    found = connection.cursor(row_factory=tuple_row).execute(_PRESENT).fetchall()
    return sorted(declared(files) - {name for name, works in found if works})


# The database's clock decides about every lease. People compare logs, and gateways timestamps.
CLOCK_SECONDS_MAX = 2.0
_NAMES_MAX = 5  # of what is missing
# How long any one look may take. For its transaction only: a pooler lends the session to others.
_LIMITS = (
    "SELECT set_config('statement_timeout', '5s', true), set_config('lock_timeout', '2s', true)"
)
_ROLES = """
SELECT r.rolname, pg_has_role(r.oid, 'USAGE') FROM pg_catalog.pg_roles r
 WHERE r.rolname LIKE 'leasehold\\_%' AND pg_has_role(r.oid, 'MEMBER') ORDER BY 1
"""
_DURABILITY = """
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       current_setting('fsync'), (SELECT count(*) FROM pg_catalog.pg_stat_replication)
"""
_PARTITIONS = """
SELECT to_regclass('leasehold.outbox_attempts_' || to_char(m.month, 'YYYY_MM')) IS NOT NULL
  FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' + n * interval '1 month' AS month
          FROM generate_series(0, 1) AS n) AS m
"""
_INSTANCES = """
SELECT count(*) FILTER (WHERE is_alive AND role <> 'api'), count(*) FILTER (WHERE role = 'silent'),
       (SELECT expires_at > clock_timestamp() FROM leasehold.leases
         WHERE lease_name = 'leasehold-reaper')
  FROM leasehold.instance_status
"""


def examine(database_url: str, role: str | None = None) -> Sequence[Check]:
    """Look at everything, as `role`. Without a connection, that is the only check."""
    try:
        connection = connect(database_url, application_name="leasehold doctor")
    except LeaseholdError as error:
        return [Check("connection", "fail", str(error), "check the URL, the server and its rules")]
    with connection:
        info = connection.info
        found = [Check("connection", "ok", f"{info.user}@{info.host}:{info.port}/{info.dbname}")]
        connection.read_only = True
        found.append(_tls(connection, database_url))
        if role is not None and (refused := _role_refused(connection, role)):
            return [*found, refused]
        for name, look in _LOOKS.items():
            found.append(_looked(name, look, connection, role))
    return found


def _role_refused(connection: Connection, role: str) -> Check | None:
    try:
        with connection.transaction():
            _act_as(connection, role)
    except psycopg.Error as error:
        why = f"the login may not act as {role}: {error.diag.message_primary}"
        return Check("roles", "fail", why, f"have a DBA run GRANT {role} TO the login")
    return None


def _act_as(connection: Connection, role: str) -> None:
    connection.execute("SELECT set_config('role', %s, true)", [role])


def _looked(
    name: str, look: Callable[[Connection], Check], connection: Connection, role: str | None
) -> Check:
    try:
        with connection.transaction():
            connection.execute(_LIMITS)
            if role is not None:
                _act_as(connection, role)
            return look(connection)
    except (psycopg.Error, LeaseholdError) as error:
        why = " ".join(str(error).split())
        return Check(name, "warn", f"could not be checked: {why}", "use a login that may look")


def _tls(connection: Connection, database_url: str) -> Check:
    is_encrypted = connection.pgconn.ssl_in_use
    how = "encrypted" if is_encrypted else "not encrypted"
    if unverified := unverified_hosts(database_url):
        return Check(
            "tls",
            "warn",
            f"{how}, and nobody checks who answers at {', '.join(unverified)}",
            "set LEASEHOLD_DATABASE_TLS=verify-full and LEASEHOLD_DATABASE_TLS_CA",
        )
    return Check("tls", "ok", f"{how}; {'verified' if is_encrypted else 'on this machine'}")


def _server(connection: Connection) -> Check:
    version = connection.info.parameter_status("server_version") or "?"
    [(is_standby,)] = connection.execute("SELECT pg_is_in_recovery()").fetchall()
    if connection.info.server_version // 10000 < OLDEST_POSTGRES:
        advice = f"use PostgreSQL {OLDEST_POSTGRES} or newer"
        return Check("server", "fail", f"PostgreSQL {version}", advice)
    if is_standby:
        return Check("server", "fail", "a hot standby, which takes no writes", "use the primary")
    return Check("server", "ok", f"PostgreSQL {version}")


def _encoding(connection: Connection) -> Check:
    encoding = connection.info.parameter_status("server_encoding") or "?"
    if encoding != "UTF8":
        advice = "create a database with TEMPLATE template0 ENCODING 'UTF8'"
        return Check("encoding", "fail", encoding, advice)
    return Check("encoding", "ok", encoding)


def _schema(connection: Connection) -> Check:
    current = read(connection)
    files = SqlFiles()
    try:
        require_usable(files, current)
    except MigrationError as error:
        advice = "run `leasehold migrate`, of the newest release"
        return Check("schema", "fail", str(error).partition(": run ")[0], advice)
    lacking = [] if current.is_newer_than(files) else missing_or_broken(connection, files)
    if lacking:
        more = f" and {len(lacking) - _NAMES_MAX} more" if len(lacking) > _NAMES_MAX else ""
        names = f"{', '.join(lacking[:_NAMES_MAX])}{more}"
        advice = (
            "stop the instances and restore the backup into an empty database, not with pg_restore"
            " --clean. If it was no restore: `leasehold migrate --print` shows how each is created,"
            " and REINDEX mends an invalid index"
        )
        return Check("schema", "fail", f"missing, invalid or switched off: {names}", advice)
    return Check("schema", "ok", f"version {current.version}")


def _roles(connection: Connection) -> Check:
    roles = connection.execute(_ROLES).fetchall()
    names = ", ".join(name for name, _ in roles)
    if not roles:
        advice = "have a DBA run GRANT leasehold_executor (and others) TO the login"
        return Check("roles", "fail", "the login has no role of Leasehold", advice)
    if not any(has_rights for _, has_rights in roles):
        advice = f"set LEASEHOLD_DATABASE_ROLE={roles[0][0]}, or have a DBA let the login inherit"
        return Check("roles", "fail", f"the login does not inherit the rights of {names}", advice)
    return Check("roles", "ok", names)


def _durability(connection: Connection) -> Check:
    [(commit, names, fsync, standbys)] = connection.execute(_DURABILITY).fetchall()
    if fsync != "on":
        return Check("durability", "fail", "fsync is off", "a crash can destroy the database")
    if commit == "off":
        return Check(
            "durability",
            "warn",
            "synchronous_commit is off",
            "a crash loses what was just accepted: set it to on",
        )
    is_synchronous = bool(names) and commit != "local"
    if standbys and not is_synchronous:
        return Check(
            "durability",
            "warn",
            f"{standbys} standbys replicate asynchronously",
            "a failover can lose accepted intents and grant an epoch twice: "
            "set synchronous_standby_names, and synchronous_commit to on",
        )
    how = f"synchronous standbys: {names}" if is_synchronous else "no standby is connected"
    return Check("durability", "ok", f"synchronous_commit is {commit}; {how}")


def _clock(connection: Connection) -> Check:
    before = datetime.now(UTC)
    [(theirs,)] = connection.execute("SELECT clock_timestamp()").fetchall()
    after = datetime.now(UTC)
    ahead = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    if ahead > CLOCK_SECONDS_MAX:
        advice = "synchronise both clocks; leases use the database's alone"
        return Check("clock", "warn", f"differs from the database's by {ahead:.1f} seconds", advice)
    return Check("clock", "ok", f"within {CLOCK_SECONDS_MAX:g} seconds of the database's")


def _partitions(connection: Connection) -> Check:
    made = [is_there for (is_there,) in connection.execute(_PARTITIONS).fetchall()]
    if not all(made):
        advice = "run a worker with a reaper, which makes them; until then rows go to the default"
        return Check(
            "partitions", "warn", "the ledger lacks this month's or the next one's", advice
        )
    return Check("partitions", "ok", "the ledger has this month's and the next one's")


def _instances(connection: Connection) -> Check:
    [(alive, silent, has_reaper)] = connection.execute(_INSTANCES).fetchall()
    if not alive:
        return Check("instances", "warn", "none submits intents", "start `leasehold worker`")
    if not has_reaper:
        advice = "let one have LEASEHOLD_REAPER=true: nobody repairs what dead ones leave"
        return Check("instances", "warn", f"{alive} alive, none reaps", advice)
    return Check("instances", "ok", f"{alive} alive, one of them reaps; {silent} fell silent")


_LOOKS: dict[str, Callable[[Connection], Check]] = {
    "server": _server,
    "encoding": _encoding,
    "schema": _schema,
    "roles": _roles,
    "durability": _durability,
    "clock": _clock,
    "partitions": _partitions,
    "instances": _instances,
}
