"""The connections to PostgreSQL: bounded in number, in waiting, and in the time of each call.

Every call runs under limits that the server enforces (statement_timeout, lock_timeout,
idle_in_transaction_session_timeout), so a call that we gave up on cannot take effect later. The
limits reach the server in one of two ways:

- direct: as startup options of each connection;
- through a transaction pooler (`through_pooler`): with each call, in its transaction, because the
  next call may use another session and because pgbouncer rejects startup options. The limits and
  the statement travel in one query string, so a call is one round trip. Nothing is prepared.

Every transaction is READ COMMITTED and may write, whatever the login and the database have for
defaults. That travels the same way, and a server or pooler that does not take it is refused.

A `role` travels the same way: every call then has the rights of that role only, whatever else the
login is a member of.

In front of psycopg's pool stands a cache of up to three warm connections, the most used first. A
session needs several milliseconds to plan its first claim, and psycopg's pool lends the connection
that was idle longest. A connection returns to the pool when someone waits for one, when it is not
fit for another call, and every minute: the pool still decides how many there are and how old.

A connection that the server has closed, as all are after its restart, is not lent: a statement on
it would fail, and nobody could tell whether it took effect. A look at the socket tells, without a
round trip.

A process that was forked opens connections of its own. On one that two processes share, each would
read the other's rows; those that it inherited are neither used nor closed, which would end them.
"""

from __future__ import annotations

import asyncio
import os
import re
from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from leasehold.domain.errors import AccessDenied, DatabaseUnavailable, InvalidArgument, Unavailable
from leasehold.observe.logs import hide_in_logs
from leasehold.store.postgres.connection import Connection, configure, shut_down
from leasehold.store.postgres.database_url import (
    connection_parameters,
    passwords_in,
    without_password,
)
from leasehold.store.postgres.errors import translated

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leasehold.store.pool_settings import PoolSettings


# For one transaction, as its first statement.
SET_TRANSACTION = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
# The same for a session. In a startup option, a space needs a backslash.
_TRANSACTIONS = {
    "default_transaction_isolation": r"read\ committed",
    "default_transaction_read_only": "off",
}
_READ_TRANSACTION = """
SELECT pg_is_in_recovery(), current_setting('transaction_isolation') = 'read committed'
                            AND current_setting('transaction_read_only') = 'off'
"""

CACHE_SIZE = 3
CACHE_SECONDS = 60.0

# psycopg's pool doubles its wait after each failure to connect; this bounds how long the return of
# the database can go unnoticed.
_RECONNECT_SECONDS = 5.0

# libpq does not tell the SQLSTATE of a refused connection. These refusals do not go away by
# themselves.
_REFUSAL = re.compile(
    r"password authentication failed"
    r'|no pg_hba\.conf entry|role ".*" does not exist'
    r'|database ".*" does not exist'
    r"|unsupported startup parameter"
)

_query_count = attrgetter("query_count")


class Pool:
    """Lends connections in autocommit, one call each, and ends calls that take too long."""

    def __init__(self, database_url: str, settings: PoolSettings) -> None:
        self.settings = settings
        self._parameters = connect_parameters(database_url, settings)
        hide_in_logs(passwords_in(database_url))
        self._pool = self._new_pool()
        self._process = os.getpid()
        self._inherited: list[object] = []  # so that they are not closed as garbage either
        self._cache: list[Connection] = []  # the most used one last
        self._cache_size = 0 if settings.check_on_checkout else CACHE_SIZE
        self._waiting = 0

    async def open(self) -> None:
        """Connect, or raise DatabaseUnavailable with the server's reason."""
        await self._require_reachable()
        with translated():
            await self._pool.open()

    async def close(self) -> None:
        """Close all connections of this process; those in use when they are returned."""
        if self._process != os.getpid():
            return
        self._cache_size = 0
        while self._cache:
            await self._pool.putconn(self._cache.pop())
        await self._pool.close()

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for one call: `async with`. Errors are still psycopg's."""
        return _Lent(self, self.settings.answer_seconds)

    async def take(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """Take a cached connection, or one of psycopg's pool."""
        if self._process != os.getpid() and not self._pool.closed:
            await self._open_after_fork()
        while self._cache:
            connection = self._cache.pop()
            if connection.is_open():
                return connection
            await self._pool.putconn(connection)
        self._waiting += 1
        try:
            # The pool replaces what it gets back closed, so this ends: a new one is open.
            while not (connection := await self._pool.getconn()).is_open():
                await self._pool.putconn(connection)
        finally:
            self._waiting -= 1
        connection.cached_until = loop.time() + CACHE_SECONDS
        return connection

    async def give_back(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Cache a connection, or return it to psycopg's pool."""
        if (
            len(self._cache) < self._cache_size
            and not self._waiting
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
            and loop.time() < connection.cached_until
        ):
            insort(self._cache, connection, key=_query_count)
        else:
            await self._pool.putconn(connection)

    def _new_pool(self) -> AsyncConnectionPool[Connection]:
        settings = self.settings
        return AsyncConnectionPool(
            connection_class=Connection,
            kwargs=self._parameters,
            min_size=settings.size_min,
            max_size=settings.size_max,
            max_waiting=settings.waiting_max,
            timeout=settings.wait_seconds,
            reconnect_timeout=_RECONNECT_SECONDS,
            configure=configure,
            check=AsyncConnectionPool.check_connection if settings.check_on_checkout else None,
            name=settings.application_name,
            open=False,
        )

    async def _open_after_fork(self) -> None:
        self._inherited += [self._pool, self._cache]
        self._process = os.getpid()
        self._pool, self._cache, self._waiting = self._new_pool(), [], 0
        await self._pool.open()  # without suspending, so that no other call finds it closed

    async def _require_reachable(self) -> None:
        """Connect once by hand: psycopg's pool would report only a timeout, not the reason."""
        try:
            connection = await psycopg.AsyncConnection.connect(**self._parameters)
        except psycopg.OperationalError as error:
            message = without_password(str(error), self._parameters)
            if "unsupported startup parameter" in message:
                message += ": this is a connection pooler; set LEASEHOLD_THROUGH_POOLER=true"
            if self.settings.role is not None and "permission denied to set role" in message:
                raise AccessDenied(
                    f"this login may not act as {self.settings.role}: have a DBA run "
                    f"GRANT {self.settings.role} TO the login"
                ) from None
            raise DatabaseUnavailable(
                f"cannot connect to the database: {message}",
                reason=Unavailable.REFUSED if _REFUSAL.search(message) else Unavailable.NO_ANSWER,
            ) from None
        try:
            with translated():
                await self._require_settings(connection)
        finally:
            await connection.close()

    async def _require_settings(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Refuse a server that does not write, and a pooler that drops our settings."""
        seconds = self.settings.answer_seconds
        deadline = asyncio.get_running_loop().call_later(seconds, shut_down, connection)
        try:
            cursor = await connection.execute(_READ_TRANSACTION)
            [(is_standby, has_settings)] = await cursor.fetchall()
        finally:
            deadline.cancel()
        if is_standby:
            raise DatabaseUnavailable(
                "the database is a hot standby, which takes no writes: use the URL of the primary, "
                "or name all servers in it with target_session_attrs=read-write"
            )
        if not has_settings and not self.settings.through_pooler:
            raise InvalidArgument(
                "the database session does not have our settings: this is a connection pooler that "
                "drops startup options; set LEASEHOLD_THROUGH_POOLER=true"
            )


class _Lent:
    """A connection while one call uses it.

    In autocommit, nothing is left to commit or roll back when it is returned.
    """

    __slots__ = ("_connection", "_deadline", "_loop", "_pool", "_seconds")

    def __init__(self, pool: Pool, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Connection:
        connection = await self._pool.take(self._loop)
        # On a network that drops packets, neither the server's limit nor a cancellation ends the
        # wait for an answer. Shutting the socket down does.
        self._deadline = self._loop.call_later(self._seconds, shut_down, connection)
        self._connection = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        self._deadline.cancel()
        await self._pool.give_back(self._connection, self._loop)


def server_settings(settings: PoolSettings) -> dict[str, str]:
    """Return the limits as settings of the server, and the role."""
    seconds = {
        "statement_timeout": settings.statement_seconds,
        "lock_timeout": settings.lock_seconds,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_seconds,
    }
    limits = {name: f"{max(1, round(limit * 1000))}ms" for name, limit in seconds.items()}
    return limits if settings.role is None else {**limits, "role": settings.role}


def connect_parameters(database_url: str, settings: PoolSettings) -> dict[str, Any]:
    """Return the parameters of every connection that we open under these settings."""
    parameters = connection_parameters(database_url)
    ours: dict[str, Any] = {
        "application_name": settings.application_name,
        "autocommit": True,
        "connect_timeout": settings.connect_seconds,
        # Notice a dead peer while we wait (keepalives) and while we send (tcp_user_timeout).
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(settings.answer_seconds * 1000),
    }
    if settings.through_pooler:
        ours["prepare_threshold"] = None
    else:
        settings_given = {**_TRANSACTIONS, **server_settings(settings)}.items()
        given = parameters.get("options", "")
        ours["options"] = " ".join(
            [given, *(f"-c {name}={value}" for name, value in settings_given)]
        )
    return parameters | ours
