"""The registration of an instance: its name, and its row in the table `instances`.

The row tells people and monitoring that the instance is alive and what it does. Only the fair
shares of streams read it; no other decision does.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.service.service import Loop, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from leasehold.domain.timing import Timings
    from leasehold.store.executor_protocol import InstanceStore
    from leasehold.store.protocol import ApiStore

# An instance counts as alive for this many heartbeat intervals after its last one.
ALIVE_INTERVALS = 3
_JOIN_SECONDS = 2.0


def new_worker_id() -> str:
    """Make a unique name for this process: host, process id and random digits.

    LEASEHOLD_HOLDER_ID replaces it; then its user must keep the names of live instances distinct.
    """
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


class Registration:
    """The service that keeps this instance's row up to date."""

    name = "registration"

    def __init__(
        self,
        store: InstanceStore,
        worker_id: str,
        timings: Callable[[], Timings],
        role: Callable[[], str],
        detail: Callable[[], Mapping[str, Any]],
        shares: Callable[[], tuple[list[str], list[int], list[int]]],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings
        self._role = role
        self._detail = detail
        self._shares = shares

    async def step(self) -> Pause:
        """Write the row once."""
        seconds = self._timings().heartbeat_seconds
        alive_seconds = max(1.0, ALIVE_INTERVALS * seconds)
        targets, held, wanted = self._shares()
        await self._store.renew_instance(
            self._worker_id,
            self._role(),
            targets,
            self._detail(),
            alive_seconds,
            held,
            wanted,
        )
        return Pause(seconds)

    async def release(self) -> None:
        """Mark the instance as stopped."""
        with suppress(DatabaseUnavailable):
            await self._store.release_instance(self._worker_id)


class ApiRegistration:
    """The service that does the same for an instance that only serves the HTTP API.

    Use it as `async with`: it runs until the end of the block, and then says that it stops.
    """

    name = "registration"

    def __init__(self, store: ApiStore, instance_id: str, heartbeat_seconds: float) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._instance_id = instance_id
        self._seconds = heartbeat_seconds
        self._detail = {
            "version": metadata.version("leasehold"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    async def __aenter__(self) -> Self:
        self._loop = Loop(self, self._instance_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.stop()
        await self._loop.join(_JOIN_SECONDS)
        with suppress(LeaseholdError, TimeoutError):
            async with asyncio.timeout(_JOIN_SECONDS):
                await self._store.renew_api_instance(self._instance_id, self._detail, 0)

    async def step(self) -> Pause:
        """Write the row once."""
        alive_seconds = max(1.0, ALIVE_INTERVALS * self._seconds)
        await self._store.renew_api_instance(self._instance_id, self._detail, alive_seconds)
        return Pause(self._seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeState:
    """The state of an instance in one scope, for health checks.

    `mode` is competing, leader, follower, standalone or off.
    """

    mode: str
    holder_id: str | None = None
    lease_expires_at: datetime | None = None
