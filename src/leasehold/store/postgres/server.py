"""Creates databases on a PostgreSQL server: empty ones for one run of a program such as the demo,
and that of the embedded server.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import errors
from psycopg.sql import SQL, Identifier

from leasehold.store.database import ScratchDatabase
from leasehold.store.postgres.database_url import connect, connection_parameters, with_database

if TYPE_CHECKING:
    from collections.abc import Generator

_LEFTOVERS_MAX = 1000


class PostgresServer:
    """Server on PostgreSQL."""

    def __init__(self, server_url: str) -> None:
        """Refuse a URL that cannot be read, or that the installed libpq is too old for."""
        connection_parameters(server_url)
        self._url = server_url

    def prepare(self, folder: Path, database: str) -> bool:
        with connect(self._url, application_name="leasehold embedded") as connection:
            served = connection.execute("SHOW data_directory").fetchone()
            if served is None or not folder.samefile(Path(served[0])):
                return False
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [database])
            if found.fetchone() is None:
                connection.execute(SQL("CREATE DATABASE {}").format(Identifier(database)))
        return True

    @contextmanager
    def scratch_database(self, prefix: str) -> Generator[ScratchDatabase]:
        """Create a database named `prefix` plus a random part; drop those of runs that have ended.

        While a run lasts, its session holds an advisory lock on the name of its database, so a
        concurrent run does not drop it.
        """
        name = f"{prefix}{secrets.token_hex(4)}"
        dropped: list[str] = []
        with connect(self._url, application_name="leasehold scratch database") as session:
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
            yield ScratchDatabase(name, with_database(self._url, name), dropped)
