"""Lending connections, one call each: the one that was asked most goes out first.

Its session has everything warm (a first claim takes a session several milliseconds to plan), where
a pool hands out the one that was idle for longest. So a few connections are kept at hand: what is
asked for while the first is busy, as a claim while contracts are read, finds the second one warm
after a while too. Whatever else is needed comes from the pool. The pool still decides how many
there are and when one is too old, for a connection goes back to it when somebody waits for one,
when it is not fit for another call, and every minute.
"""

from __future__ import annotations

import asyncio
import os
import socket
from bisect import insort
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

    from leasehold.store.postgres.connection import Connection

KEPT_SECONDS = 60.0
KEPT_MAX = 3


class Lending:
    """Lends the connections of a pool; `keeps` some at hand, unless the pool has to check each."""

    def __init__(
        self, pool: AsyncConnectionPool[Connection], *, seconds: float, keeps: bool
    ) -> None:
        self._pool = pool
        self._seconds = seconds
        self._keeps = keeps
        self._kept: list[Connection] = []
        self._asking = 0

    def lend(self) -> _Lent:
        """Lend a connection for one call, and cut it when the call takes too long."""
        return _Lent(self, self._seconds)

    async def close(self) -> None:
        """Keep none any more."""
        self._keeps = False
        while (kept := self.take_kept()) is not None:
            await self._pool.putconn(kept)

    def take_kept(self) -> Connection | None:
        """Take the warmest one at hand, if there is one."""
        return self._kept.pop() if self._kept else None

    async def take(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """Ask the pool."""
        self._asking += 1
        try:
            connection = await self._pool.getconn()
        finally:
            self._asking -= 1
        connection.kept_until = loop.time() + KEPT_SECONDS
        return connection

    def keep(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
        """Keep it at hand; if not, it is to be given back."""
        if (
            self._keeps
            and len(self._kept) < KEPT_MAX
            and not self._asking
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
            and loop.time() < connection.kept_until
        ):
            insort(self._kept, connection, key=_asked_count)
            return True
        return False

    async def give_back(self, connection: Connection) -> None:
        """Return it to the pool."""
        await self._pool.putconn(connection)


def _asked_count(connection: Connection) -> int:
    return connection.asked_count


class _Lent:
    """A connection in the hands of one call. In autocommit nothing is left to commit or to roll
    back when it comes back.
    """

    __slots__ = ("_connection", "_lending", "_loop", "_seconds", "_watch")

    def __init__(self, lending: Lending, seconds: float) -> None:
        self._lending = lending
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Connection:
        connection = self._lending.take_kept() or await self._lending.take(self._loop)
        # On a network that swallows packets neither the server's limit nor a cancellation ends the
        # wait for an answer; an end of the stream does.
        self._watch = self._loop.call_later(self._seconds, cut, connection)
        self._connection = connection
        return connection

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        if not self._lending.keep(self._connection, self._loop):
            await self._lending.give_back(self._connection)


def cut(connection: psycopg.AsyncConnection[Any]) -> None:
    """End the stream under a connection, so that whoever reads from it gets an error now."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        wire.shutdown(socket.SHUT_RDWR)
