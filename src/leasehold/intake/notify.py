"""Waking those who wait for work: with a lonely enqueue, and for many of them at once.

NOTIFY takes a lock that all notifying transactions of the server share until they are committed, so
one enqueue here and there takes it along, and no more (docs/decisions/0010). For all others targets
are collected after the commits: the first wake-up leaves at once, and the more intents one stands
for, the longer until the next. It is a hint. One that is lost costs its target the wait for the
next poll, and nothing else, so nothing here raises and nothing is tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.store.protocol import IngestStore

# Times what a wake-up stands for: when intents come without a pause, workers are awake, and every
# wake-up is a call of the database that enqueues none.
PAUSE_SECONDS = 0.005
PAUSE_SECONDS_MAX = 0.05
# How often an enqueue may take its wake-up along.
TRAVEL_SECONDS = 0.025
TARGETS_MAX = 1000  # in one call of notify_targets
_CLOSE_SECONDS = 1.0

_log = get_logger(__name__)


class Wakeups:
    """Collects targets and notifies them, in one task of the running event loop."""

    def __init__(self, store: IngestStore) -> None:
        self._store = store
        self._waiting: set[str] = set()
        self._intents = 0
        self._task: asyncio.Task[None] | None = None
        self._may_travel_at = 0.0

    def may_travel(self) -> bool:
        """Say whether the enqueue that begins now is to take its wake-up along; if not, call
        `wake` after it.
        """
        now = asyncio.get_running_loop().time()
        if self._is_busy() or now < self._may_travel_at:
            return False
        self._may_travel_at = now + TRAVEL_SECONDS
        return True

    def wake(self, targets: Iterable[str], intents: int = 1) -> None:
        """Have these targets notified soon, for so many intents; returns at once."""
        for target in targets:
            if len(self._waiting) < TARGETS_MAX:  # the rest is found by polling
                self._waiting.add(target)
        if self._waiting:
            self._intents += intents
            if not self._is_busy():
                self._task = asyncio.create_task(self._notify())

    async def close(self) -> None:
        """Let the last wake-up leave, but do not wait long for it."""
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            if not done:
                self._task.cancel()

    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _notify(self) -> None:
        while self._waiting:
            targets, self._waiting = sorted(self._waiting), set()
            intents, self._intents = self._intents, 0
            try:
                await self._store.notify_targets(targets)
            except LeaseholdError as error:
                _log.info("wake-up lost; polling finds the work", targets=targets, why=str(error))
            await asyncio.sleep(min(PAUSE_SECONDS * intents, PAUSE_SECONDS_MAX))
