"""Waking those who wait for work, after the commits and for many of them at once.

NOTIFY takes a lock that all committing transactions of the server share, so an enqueue never waits
for it: targets are collected, the first wake-up leaves at once, and after it at most one every few
milliseconds per process. It is a hint. One that is lost costs its target the wait for the next
poll, and nothing else, so nothing here raises and nothing is tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.store.protocol import IngestStore

PAUSE_SECONDS = 0.005
TARGETS_MAX = 1000  # in one call of notify_targets
_CLOSE_SECONDS = 1.0

_log = get_logger(__name__)


class Wakeups:
    """Collects targets and notifies them, in one task of the running event loop."""

    def __init__(self, store: IngestStore, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._store = store
        self._pause_seconds = pause_seconds
        self._waiting: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def wake(self, targets: Iterable[str]) -> None:
        """Have these targets notified soon; returns at once."""
        for target in targets:
            if len(self._waiting) < TARGETS_MAX:  # the rest is found by polling
                self._waiting.add(target)
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._notify())

    async def close(self) -> None:
        """Let the last wake-up leave, but do not wait long for it."""
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            if not done:
                self._task.cancel()

    async def _notify(self) -> None:
        while self._waiting:
            targets, self._waiting = sorted(self._waiting), set()
            try:
                await self._store.notify_targets(targets)
            except LeaseholdError as error:
                _log.info("wake-up lost; polling finds the work", targets=targets, why=str(error))
            await asyncio.sleep(self._pause_seconds)
