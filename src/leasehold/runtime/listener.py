"""Hints that work is due, by LISTEN on a connection of its own; polling is correct without them.

A dead connection is noticed, and until there is a new one we poll. LISTEN comes first and then a
look at everything, so that nothing falls between the two. A transaction pooler cannot carry LISTEN:
there the listener is not started at all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from leasehold.coordination.service import AGAIN
from leasehold.domain.errors import DatabaseUnavailable
from leasehold.store.postgres.address import connection_parameters, without_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.coordination.service import Pause

DUE_CHANNEL = "leasehold_due"
LEASE_CHANNEL = "leasehold_lease"
# Between two proofs that the connection is alive.
LISTEN_SECONDS = 30.0
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 5.0


class Hinted(Protocol):
    """Whoever wants to know that work is due."""

    def work_is_due(self, target: str) -> None:
        """Take the hint that a target has work."""
        ...

    def lease_is_free(self, lease_name: str) -> None:
        """Take the hint that a leader has let go."""
        ...

    def look_everywhere(self) -> None:
        """Take the hint that nobody knows which targets have work."""
        ...


class Listener:
    """The service that waits for hints."""

    name = "listener"

    def __init__(self, database_url: str, told: Sequence[Hinted], worker_id: str) -> None:
        self.wake = asyncio.Event()
        self._told = told
        self._parameters: dict[str, Any] = connection_parameters(database_url) | {
            "application_name": f"leasehold listener {worker_id}"[:63],
            "autocommit": True,
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "prepare_threshold": None,
        }
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def step(self) -> Pause:
        """Pass on what comes for a while, then prove that the connection is alive."""
        try:
            connection = self._connection or await self._connected()
            async for hint in connection.notifies(timeout=LISTEN_SECONDS):
                self._pass_on(hint)
            async with asyncio.timeout(_ANSWER_SECONDS):
                await connection.execute("SELECT 1")
        except (psycopg.Error, TimeoutError) as error:
            await self.close()
            said = without_password(str(error) or "no answer", self._parameters)
            raise DatabaseUnavailable(f"listening failed: {said}") from None
        return AGAIN

    def _pass_on(self, hint: psycopg.Notify) -> None:
        for one in self._told:
            if hint.channel == LEASE_CHANNEL:
                one.lease_is_free(hint.payload)
            else:
                one.work_is_due(hint.payload)

    async def close(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection[Any].connect(**self._parameters)
        self._connection = connection
        await connection.execute(f"LISTEN {DUE_CHANNEL}; LISTEN {LEASE_CHANNEL}")
        for one in self._told:
            one.look_everywhere()
        return connection
