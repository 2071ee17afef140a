"""The database of one test and its connections; all are dropped after the test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.datetime import TimestamptzLoader

from tests.support.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.servers import Server

    Params = Sequence[Any] | Mapping[str, Any] | None


FOREVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)


class EndlessTimeLoader(TimestamptzLoader):
    """Reads infinity as the latest, and -infinity as the earliest datetime."""

    def load(self, data: Any) -> datetime:
        endless = {b"infinity": FOREVER, b"-infinity": LONG_AGO}.get(bytes(data))
        return endless or super().load(data)


class Database:
    """Connects as a role: owner, ingest, executor, operator, readonly, auditor; None is superuser.

    Each role has its own login (`test_ingest`, ...), a member of exactly that role. Only the
    owner's connections also SET ROLE, so that the objects they create belong to it.
    """

    def __init__(self, server: Server, name: str):
        self.server = server
        self.name = name
        self.url = server.url_of(name)
        self._connections: list[psycopg.Connection[Any]] = []
        self._async_connections: list[psycopg.AsyncConnection[Any]] = []
        self._sessions: list[Session] = []
        self._cached: dict[str | None, psycopg.Connection[DictRow]] = {}

    def url_as(self, role: str) -> str:
        return self.server.url_of(self.name, role)

    def connect(
        self, role: str | None = None, *, autocommit: bool = True
    ) -> psycopg.Connection[DictRow]:
        connection = psycopg.connect(
            self._address(role), autocommit=autocommit, row_factory=dict_row
        )
        connection.adapters.register_loader("timestamptz", EndlessTimeLoader)
        self._connections.append(connection)
        return connection

    async def aconnect(
        self, role: str | None = None, *, autocommit: bool = True
    ) -> psycopg.AsyncConnection[DictRow]:
        connection = await psycopg.AsyncConnection.connect(
            self._address(role), autocommit=autocommit, row_factory=dict_row
        )
        connection.adapters.register_loader("timestamptz", EndlessTimeLoader)
        self._async_connections.append(connection)
        return connection

    def owner(self, *, autocommit: bool = True) -> psycopg.Connection[DictRow]:
        return self.connect("owner", autocommit=autocommit)

    def session(self, role: str | None = None) -> Session:
        """Open a session to step through an interleaving; the test sends BEGIN and COMMIT."""
        session = Session(self.connect(role), observer=self._on("observer", None))
        self._sessions.append(session)
        return session

    def execute(self, statement: str, params: Params = None) -> list[DictRow]:
        """Run a statement as superuser, in its own transaction."""
        return rows(self._on(None, None).execute(statement, params))

    def owner_execute(self, statement: str, params: Params = None) -> list[DictRow]:
        return rows(self._on("owner", "owner").execute(statement, params))

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for connection in self._connections:
            connection.close()
        for connection in self._async_connections:
            connection.pgconn.finish()  # its event loop may be gone already
        self.server.leave_database(self.name)

    def _address(self, role: str | None) -> str:
        more = {"options": "-c role=leasehold_owner"} if role == "owner" else {}
        return self.server.url_of(self.name, role, **more)

    def _on(self, name: str | None, role: str | None) -> psycopg.Connection[DictRow]:
        if name not in self._cached or self._cached[name].closed:
            self._cached[name] = self.connect(role)
        return self._cached[name]


def rows(cursor: psycopg.Cursor[DictRow]) -> list[DictRow]:
    """Return the rows of a statement; an empty list if it returns no rows."""
    # Not empty alone: a SELECT without columns has rows too.
    return [] if cursor.description is None else cursor.fetchall()
