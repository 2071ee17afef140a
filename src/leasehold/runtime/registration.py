"""An instance shows that it is there: a row in `instances`, for people; no decision reads it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.domain.timing import Timings
    from leasehold.store.protocol import ExecutorStore

# Seen no longer ago than this many intervals: alive.
ALIVE_INTERVALS = 3


class Presence:
    """The service that renews the row."""

    name = "presence"

    def __init__(
        self,
        store: ExecutorStore,
        worker_id: str,
        timings: Callable[[], Timings],
        role: Callable[[], str],
        detail: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings
        self._role = role
        self._detail = detail

    async def step(self) -> Pause:
        """Say that we are alive, and what we do."""
        seconds = self._timings().heartbeat_seconds
        alive_seconds = max(1.0, ALIVE_INTERVALS * seconds)
        await self._store.renew_instance(
            self._worker_id, self._role(), [], self._detail(), alive_seconds
        )
        return Pause(seconds)

    async def release(self) -> None:
        """Say that we are going."""
        with suppress(DatabaseUnavailable):
            await self._store.release_instance(self._worker_id)
