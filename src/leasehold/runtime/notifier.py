"""Hints that work is due, by LISTEN on a connection of its own; polling is correct without them.

A dead connection is noticed, and until there is a new one we poll. LISTEN comes first and then a
look at everything, so that nothing falls between the two. A transaction pooler cannot carry LISTEN:
there the notifier is not started at all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN
from leasehold.store.postgres.address import connection_parameters, without_password
from leasehold.store.postgres.lending import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.service.service import Pause

DUE_CHANNEL = "leasehold_due"
LEASE_CHANNEL = "leasehold_lease"
# Between two proofs that the connection is alive.
LISTEN_SECONDS = 30.0
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 5.0

_LOG = get_logger(__name__)


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


class Notifier:
    """The service that waits for hints."""

    name = "notifier"

    def __init__(
        self,
        database_url: str,
        told: Sequence[Hinted],
        worker_id: str,
        role: Callable[[], str],
    ) -> None:
        self.wake = asyncio.Event()
        self._told = told
        self._worker_id = worker_id
        self._role = role
        self._is_deaf = False
        self._parameters: dict[str, Any] = connection_parameters(database_url) | {
            "application_name": f"leasehold notifier {worker_id}"[:63],
            "autocommit": True,
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            # Keepalives are not sent while something of ours waits to be confirmed.
            "tcp_user_timeout": round(_ANSWER_SECONDS * 1000),
            "prepare_threshold": None,
        }
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def step(self) -> Pause:
        """Pass on what comes for a while, then prove that the connection is alive."""
        try:
            connection = self._connection or await self._connected()
            async for hint in connection.notifies(timeout=LISTEN_SECONDS):
                self._pass_on(hint)
            await self._asked(connection, "SELECT 1")
        except (psycopg.Error, TimeoutError) as error:
            await self.close()
            said = without_password(str(error) or "no answer", self._parameters)
            self._tell_failure(said)
            raise DatabaseUnavailable(f"listening failed: {said}") from None
        return AGAIN

    async def _asked(self, connection: psycopg.AsyncConnection[Any], statement: str) -> None:
        """Have it answered in time. A cancellation would wait for a network that swallows packets;
        the end of the stream does not.
        """
        watch = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, cut, connection)
        try:
            await connection.execute(statement.encode())
        finally:
            watch.cancel()

    def _tell_failure(self, said: str) -> None:
        """Say what is stale from now on; once, not at each try to connect."""
        if not self._is_deaf:
            self._is_deaf = True
            _LOG.error(
                "listening_failed",
                worker_id=self._worker_id,
                role=self._role(),
                sql_error=said,
                stale="which work is due and which lease is free; both are asked for now and then",
            )

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
        await self._asked(connection, f"LISTEN {DUE_CHANNEL}; LISTEN {LEASE_CHANNEL}")
        self._is_deaf = False
        for one in self._told:
            one.look_everywhere()
        return connection
