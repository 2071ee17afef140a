"""A background service is one step that says how long to pause before the next.

Only `Loop` sleeps, logs failures, backs off and stops, so no service contains a loop of its own. A
service that fails is retried with a growing backoff: the database may be down for a while, and
nobody should have to restart the instance for that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger
from leasehold.service.backoff import Backoff

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 5.0

_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """How long the loop sleeps before the next step, unless the service is woken."""

    seconds: float = 0.0


AGAIN = Pause(0.0)


class Service(Protocol):
    """What a Loop runs. Set `wake` to end the pause early."""

    name: str
    wake: asyncio.Event

    async def step(self) -> Pause:
        """Do the work that is there now."""
        ...


@runtime_checkable
class PacedService(Service, Protocol):
    """A service that is never retried sooner than after `retry_seconds`.

    For steps that load the database: a failure must not make them more frequent.
    """

    retry_seconds: float


class Loop:
    """Runs one service until it is told to stop."""

    def __init__(self, service: Service, worker_id: str) -> None:
        self._service = service
        self._worker_id = worker_id
        self._is_stopping = False
        self._retry_seconds = service.retry_seconds if isinstance(service, PacedService) else 0.0
        self._backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_SECONDS_MAX)
        self._task = asyncio.create_task(self._run(), name=service.name)

    @property
    def is_done(self) -> bool:
        """Whether the last step has ended."""
        return self._task.done()

    def stop(self) -> None:
        """Take no further step; a step that is running ends by itself."""
        self._is_stopping = True
        self._service.wake.set()

    async def join(self, seconds: float) -> None:
        """Wait for the last step, and cancel it if it takes too long."""
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=seconds)

    async def _run(self) -> None:
        while not self._is_stopping:
            pause_seconds = await self._step()
            if not self._is_stopping:  # the service may have cleared its own wake
                await self._sleep(pause_seconds)

    async def _step(self) -> float:
        self._service.wake.clear()
        try:
            pause = await self._service.step()
        except Exception as error:  # noqa: BLE001 (a defect of one service must not end the others)
            return self._back_off(error)
        if self._backoff.failures:
            _LOG.info("service_recovered", service=self._service.name, worker_id=self._worker_id)
            self._backoff.reset()
        return pause.seconds

    def _back_off(self, error: Exception) -> float:
        seconds = max(self._retry_seconds, self._backoff.next_seconds())
        _LOG.warning(
            "service_failed",
            service=self._service.name,
            worker_id=self._worker_id,
            error=f"{type(error).__name__}: {error}",
            failures=self._backoff.failures,
            retry_in_seconds=round(seconds, 3),
            # Our own errors explain themselves; anything else is a defect and needs the traceback.
            exc_info=None if isinstance(error, LeaseholdError) else error,
        )
        return seconds

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        if self._backoff.failures:
            await self._sleep_unless_stopped(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._service.wake.wait()
        except TimeoutError:
            pass

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        """Sleep through a backoff. A stop ends it; a wake does not."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + seconds
        while not self._is_stopping and (left := ends_at - clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._service.wake.wait()
            except TimeoutError:
                return
            self._service.wake.clear()
