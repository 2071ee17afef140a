"""The one loop. Only here do we sleep, log a failure, back off and stop.

A service that fails is tried again, after longer and longer pauses: a database that is gone comes
back, and nobody should have to restart us for that.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from leasehold.service.service import Service

FIRST_BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0

_LOG = get_logger(__name__)


class Loop:
    """One service, running until it is told to stop."""

    def __init__(self, service: Service, worker_id: str) -> None:
        self._service = service
        self._worker_id = worker_id
        self._is_stopping = False
        self._failures = 0
        self._task = asyncio.create_task(self._run(), name=service.name)

    @property
    def is_done(self) -> bool:
        """Whether the last step has ended."""
        return self._task.done()

    def stop(self) -> None:
        """Take no further step; the one that is being taken ends by itself."""
        self._is_stopping = True
        self._service.wake.set()

    async def join(self, seconds: float) -> None:
        """Wait for the last step, and cancel it when it takes too long."""
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=seconds)

    async def _run(self) -> None:
        while not self._is_stopping:
            pause_seconds = await self._step()
            if not self._is_stopping:  # two loops may share a wake, and one clear it for the other
                await self._sleep(pause_seconds)

    async def _step(self) -> float:
        self._service.wake.clear()
        try:
            pause = await self._service.step()
        except Exception as error:  # noqa: BLE001 (a defect of one service must not end the others)
            return self._failed(error)
        if self._failures:
            _LOG.info("recovered_service", service=self._service.name, worker_id=self._worker_id)
        self._failures = 0
        return pause.seconds

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        seconds = min(BACKOFF_SECONDS_MAX, FIRST_BACKOFF_SECONDS * 2 ** min(self._failures, 10))
        # Not all instances at once, when the database comes back.
        seconds *= random.uniform(0.5, 1.0)  # noqa: S311 (spreads, protects nothing)
        _LOG.warning(
            "service_failed",
            service=self._service.name,
            worker_id=self._worker_id,
            error=f"{type(error).__name__}: {error}",
            failures=self._failures,
            again_in_seconds=round(seconds, 3),
            # What we raise on purpose says it all; anything else is a defect to be found.
            exc_info=None if isinstance(error, LeaseholdError) else error,
        )
        return seconds

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        if self._failures:
            await self._sleep_unless_stopped(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._service.wake.wait()
        except TimeoutError:
            pass

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        """Back off: news does not shorten it, a stop does."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while not self._is_stopping and (left := ends_at - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._service.wake.wait()
            except TimeoutError:
                return
            self._service.wake.clear()
