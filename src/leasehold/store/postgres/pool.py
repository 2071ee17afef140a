"""The connections to PostgreSQL: bounded in number, in waiting, and in the time of each call.

Every call runs under limits that the server keeps (statement_timeout, lock_timeout,
idle_in_transaction_session_timeout), so that a call that we gave up on does not act later on. They
reach the server in one of two ways:

- direct: as start-up options of each connection;
- through a transaction pooler (`through_pooler`): with each call, in its own transaction, because
  the next call may go to another session, and because pgbouncer refuses start-up options. Both
  travel in one query string, so a call is one round trip either way. Nothing is prepared.

A `role` travels the same ways: every call of the pool then has the rights of that role alone,
whatever else the login is a member of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg_pool import AsyncConnectionPool

from leasehold.domain.errors import AccessDenied, DatabaseUnavailable, InvalidArgument
from leasehold.domain.intent import JsonDocument
from leasehold.observe.logs import get_logger
from leasehold.store.postgres.address import connection_parameters, without_password
from leasehold.store.postgres.connection import Connection
from leasehold.store.postgres.errors import translated
from leasehold.store.postgres.ids import register_ids
from leasehold.store.postgres.lending import Lending

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from psycopg.abc import Buffer

_LOG = get_logger(__name__)
# Beyond the server's own limit, for its answer to arrive.
_ANSWER_SECONDS = 2.0
# The pool waits twice as long after each failure to connect, and this bounds how long it can sleep
# through the database's return.
_RECONNECT_SECONDS = 5.0
# Anything more would need quotes on its way to the server.
_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many connections, how long anything may take, and by which way the limits travel."""

    application_name: str = "leasehold"
    size_min: int = 1
    size_max: int = 10
    waiting_max: int = 1000
    wait_seconds: float = 5.0
    connect_seconds: int = 5
    statement_seconds: float = 5.0
    lock_seconds: float = 3.0
    idle_in_transaction_seconds: float = 5.0
    through_pooler: bool = False
    check_on_checkout: bool = False
    role: str | None = None

    def __post_init__(self) -> None:
        if self.role is not None and not _ROLE.fullmatch(self.role):
            raise InvalidArgument(
                f"role is {self.role!r}, but must be the name of a role, such as leasehold_ingest"
            )
        if not 0 <= self.size_min <= self.size_max or self.size_max < 1:
            raise InvalidArgument(
                f"size_min ({self.size_min}) must not be over size_max ({self.size_max}), "
                "and size_max at least 1"
            )
        if self.lock_seconds >= self.statement_seconds:
            raise InvalidArgument(
                f"lock_seconds ({self.lock_seconds:g}) must be less than statement_seconds "
                f"({self.statement_seconds:g}): else a wait for a lock is never told as such"
            )

    @property
    def call_seconds(self) -> float:
        """The longest that any call can take, from asking for a connection to giving up."""
        return self.wait_seconds + self.statement_seconds + _ANSWER_SECONDS

    def server_settings(self) -> dict[str, str]:
        """Give the limits that the server keeps, in its words, and the role that it acts as."""
        seconds = {
            "statement_timeout": self.statement_seconds,
            "lock_timeout": self.lock_seconds,
            "idle_in_transaction_session_timeout": self.idle_in_transaction_seconds,
        }
        limits = {name: f"{max(1, round(limit * 1000))}ms" for name, limit in seconds.items()}
        return limits if self.role is None else {**limits, "role": self.role}


class Pool:
    """Hands out connections; each in autocommit, each cut when its call takes too long."""

    def __init__(self, database_url: str, settings: PoolSettings) -> None:
        self.settings = settings
        self._parameters = connect_parameters(database_url, settings)
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            connection_class=Connection,
            kwargs=self._parameters,
            min_size=settings.size_min,
            max_size=settings.size_max,
            max_waiting=settings.waiting_max,
            timeout=settings.wait_seconds,
            reconnect_timeout=_RECONNECT_SECONDS,
            configure=_configure,
            check=AsyncConnectionPool.check_connection if settings.check_on_checkout else None,
            name=settings.application_name,
            open=False,
        )
        self._lending = Lending(
            self._pool,
            seconds=settings.statement_seconds + _ANSWER_SECONDS,
            keeps=not settings.check_on_checkout,
        )

    async def open(self) -> None:
        """Connect, or raise DatabaseUnavailable with the server's reason."""
        await self._refuse_unreachable()
        with translated():
            await self._pool.open()

    async def close(self) -> None:
        """Close all connections; those in use when they are given back."""
        await self._lending.close()
        await self._pool.close()

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for one call: `async with`. Its errors are still psycopg's."""
        return self._lending.lend()

    async def _refuse_unreachable(self) -> None:
        """Try once by hand: the pool would only say that it waited in vain."""
        try:
            connection = await psycopg.AsyncConnection.connect(**self._parameters)
        except psycopg.OperationalError as error:
            said = without_password(str(error), self._parameters)
            if "unsupported startup parameter" in said:
                said += ": a pooler stands before the database; set LEASEHOLD_THROUGH_POOLER=true"
            if self.settings.role is not None and "permission denied to set role" in said:
                raise AccessDenied(
                    f"this login may not act as {self.settings.role}: have a DBA run "
                    f"GRANT {self.settings.role} TO the login"
                ) from None
            raise DatabaseUnavailable(f"cannot connect to the database: {said}") from None
        await connection.close()


def connect_parameters(database_url: str, settings: PoolSettings) -> dict[str, Any]:
    """Give what every connection of ours is opened with."""
    parameters = connection_parameters(database_url)
    ours: dict[str, Any] = {
        "application_name": settings.application_name,
        "autocommit": True,
        "connect_timeout": settings.connect_seconds,
        # A peer that vanished is noticed while we wait (keepalives) and while we send.
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round((settings.statement_seconds + _ANSWER_SECONDS) * 1000),
    }
    if settings.through_pooler:
        ours["prepare_threshold"] = None
    else:
        limits = settings.server_settings().items()
        given = parameters.get("options", "")
        ours["options"] = " ".join([given, *(f"-c {name}={value}" for name, value in limits)])
    return parameters | ours


async def _configure(connection: Connection) -> None:
    connection.adapters.register_loader("jsonb", _RawJson)
    connection.adapters.register_loader("jsonb", _RawBinaryJson)
    register_ids(connection)
    connection.add_notice_handler(_log_warning)


class _RawJson(Loader):
    """Leaves JSON unparsed: most of it only passes through."""

    def load(self, data: Buffer) -> JsonDocument:
        return JsonDocument(bytes(data))


class _RawBinaryJson(Loader):
    """The same where values travel in binary: after the number of the format comes the text."""

    format = Format.BINARY

    def load(self, data: Buffer) -> JsonDocument:
        return JsonDocument(bytes(data[1:]))


def _log_warning(diagnostic: psycopg.errors.Diagnostic) -> None:
    """Repair warns of rows that it had to set aside; everything else is chatter."""
    if diagnostic.severity_nonlocalized == "WARNING":
        _LOG.warning("database_warned", message=diagnostic.message_primary)
