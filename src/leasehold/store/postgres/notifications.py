"""A connection for LISTEN. It is never pooled, and it notices a dead network."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.store.database import Hint
from leasehold.store.postgres.connection import shut_down
from leasehold.store.postgres.database_url import connection_parameters, without_password

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

DUE_CHANNEL = "leasehold_due"
LEASE_CHANNEL = "leasehold_lease"
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 5.0


class PostgresNotifications:
    """Notifications on PostgreSQL."""

    def __init__(self, database_url: str, worker_id: str) -> None:
        self._parameters: dict[str, Any] = connection_parameters(database_url) | {
            "application_name": f"leasehold notifier {worker_id}"[:63],
            "autocommit": True,
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            # The kernel sends no keepalives while data of ours is unacknowledged.
            "tcp_user_timeout": round(_ANSWER_SECONDS * 1000),
            "prepare_threshold": None,
        }
        self._connection: psycopg.AsyncConnection[Any] | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def listen(self) -> None:
        """Connect and subscribe to both channels."""
        with self._unavailable():
            connection = await psycopg.AsyncConnection[Any].connect(**self._parameters)
            try:
                await _execute(connection, f"LISTEN {DUE_CHANNEL}; LISTEN {LEASE_CHANNEL}")
            except BaseException:
                await connection.close()
                raise
        self._connection = connection

    async def received(self, seconds: float) -> AsyncGenerator[Hint]:
        with self._unavailable():
            async for notify in self._required().notifies(timeout=seconds):
                yield Hint("lease" if notify.channel == LEASE_CHANNEL else "due", notify.payload)

    async def ping(self) -> None:
        """Run a statement on the connection."""
        with self._unavailable():
            await _execute(self._required(), "SELECT 1")

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _required(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise DatabaseUnavailable("not listening: call listen() first")
        return self._connection

    @contextmanager
    def _unavailable(self) -> Generator[None]:
        try:
            yield
        except (psycopg.Error, TimeoutError) as error:
            reason = without_password(str(error) or "no answer", self._parameters)
            raise DatabaseUnavailable(f"LISTEN failed: {reason}") from None


async def _execute(connection: psycopg.AsyncConnection[Any], statement: str) -> None:
    """Run a statement with a deadline.

    Cancelling it would wait for a network that drops packets; shutting the socket down does not.
    """
    deadline = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, shut_down, connection)
    try:
        await connection.execute(statement.encode())
    finally:
        deadline.cancel()
