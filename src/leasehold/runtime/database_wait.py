"""Waiting for the database at start: retry for as long as the operator allows, and then give up.

A running instance retries for ever, in its loops. A start has a limit, so that a supervisor sees a
failure that does not go away.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from leasehold.domain.errors import DatabaseUnavailable, Unavailable
from leasehold.observe.logs import get_logger
from leasehold.service.backoff import Backoff
from leasehold.service.service import BACKOFF_FIRST_SECONDS, BACKOFF_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

_LOG = get_logger(__name__)


class StopRequested(Exception):
    """A stop was requested before the start was complete."""


class DatabaseWait:
    """Makes the database calls of a start; `seconds` limits the time that all of them may wait."""

    def __init__(self, seconds: float, stop: asyncio.Event) -> None:
        self._seconds = seconds
        self._stop = stop
        self._ends_at = time.monotonic() + seconds
        self._backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_SECONDS_MAX)

    async def retry(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a call until the database answers it.

        Raises DatabaseUnavailable when the time is up, and StopRequested during a pause.
        """
        while True:
            try:
                result = await call()
            except DatabaseUnavailable as error:
                await self._pause(error)
            else:
                self._backoff.reset()
                return result

    async def _pause(self, error: DatabaseUnavailable) -> None:
        left = self._ends_at - time.monotonic()
        if error.reason is Unavailable.REFUSED:
            raise error
        if left <= 0:
            raise DatabaseUnavailable(
                f"{error} (waited {self._seconds:g} seconds at start, see --start-seconds)",
                reason=error.reason,
            ) from None
        seconds = min(self._backoff.next_seconds(), left)
        _LOG.warning(
            "database_awaited",
            error=str(error),
            retry_in_seconds=round(seconds, 3),
            gives_up_in_seconds=round(left, 1),
        )
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise StopRequested
