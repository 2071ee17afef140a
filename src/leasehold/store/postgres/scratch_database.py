"""An empty database for one run of a program, such as the demo. Left-over ones are dropped."""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from psycopg import errors
from psycopg.sql import SQL, Identifier

from leasehold.store.postgres.database_url import connect

if TYPE_CHECKING:
    from collections.abc import Generator

_LEFTOVERS_MAX = 1000


class ScratchDatabase(NamedTuple):
    """The new database, and the names of those that were dropped."""

    name: str
    dropped: list[str]


@contextmanager
def scratch_database(server_url: str, prefix: str) -> Generator[ScratchDatabase]:
    """Create a database named `prefix` plus a random part; drop those of runs that have ended.

    While a run lasts, its session holds an advisory lock on the name of its database, so a
    concurrent run does not drop it.
    """
    name = f"{prefix}{secrets.token_hex(4)}"
    dropped: list[str] = []
    with connect(server_url, application_name="leasehold scratch database") as session:
        session.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [name])
        leftovers = session.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
            " AND pg_try_advisory_lock(hashtextextended(datname, 0)) LIMIT %s",
            [prefix, _LEFTOVERS_MAX],
        )
        for (old,) in leftovers.fetchall():
            with suppress(errors.ObjectInUse, errors.InvalidCatalogName):
                session.execute(SQL("DROP DATABASE {}").format(Identifier(old)))
                dropped.append(old)
            session.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [old])
        session.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        yield ScratchDatabase(name, dropped)
