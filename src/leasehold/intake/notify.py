"""Sends NOTIFY for targets with new intents, so that workers need not wait for their next poll.

NOTIFY takes a lock that all notifying transactions of the server share until they commit. So a
single enqueue carries its own notification only now and then (docs/decisions/0010). Otherwise the
targets are collected after the commits: the first notification is sent at once, and the more
intents it stands for, the longer the pause before the next one.

A notification is a hint. If one is lost, the workers find the intents with their next poll; so
nothing here raises and nothing is retried.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.domain.intent import NewIntent
    from leasehold.store.executor_protocol import WakeStore
    from leasehold.store.rows import Enqueued

# Per intent that a notification stands for. So a few hundred intents per second have a notification
# each, and thousands share fifty: then the workers are awake anyway, and every notification is
# a database call that enqueues nothing.
PAUSE_SECONDS = 0.001
PAUSE_SECONDS_MAX = 0.02
# How often an enqueue may carry its own notification.
INLINE_SECONDS = 0.025
TARGETS_MAX = 1000  # in one call of notify_targets
_CLOSE_SECONDS = 1.0

_log = get_logger(__name__)


class Notifications:
    """Collects targets and notifies their workers, in one task of the running event loop."""

    def __init__(self, store: WakeStore) -> None:
        self._store = store
        self._targets: set[str] = set()
        self._intents = 0
        self._task: asyncio.Task[None] | None = None
        self._next_inline_at = 0.0

    def may_be_inline(self) -> bool:
        """Return whether the next enqueue may carry its notification; if not, `add` it after."""
        now = asyncio.get_running_loop().time()
        if self._is_busy() or now < self._next_inline_at:
            return False
        self._next_inline_at = now + INLINE_SECONDS
        return True

    def add(self, targets: Iterable[str], intents: int = 1) -> None:
        """Notify the workers of these targets soon, for that many intents. Returns at once."""
        for target in targets:
            if len(self._targets) < TARGETS_MAX:  # polling finds the rest
                self._targets.add(target)
        if self._targets:
            self._intents += intents
            if not self._is_busy():
                self._task = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Let the last notification be sent, but do not wait long for it."""
        if self._task is not None and self._is_busy():
            done, _ = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            if not done:
                self._task.cancel()

    def _is_busy(self) -> bool:
        """Return whether the task is running; after a fork, that of the parent never does."""
        task = self._task
        return (
            task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
        )

    async def _send(self) -> None:
        while self._targets:
            targets, self._targets = sorted(self._targets), set()
            intents, self._intents = self._intents, 0
            try:
                await self._store.notify_targets(targets)
            except LeaseholdError as error:
                _log.info("notification_lost", targets=targets, error=str(error))
            await asyncio.sleep(min(PAUSE_SECONDS * intents, PAUSE_SECONDS_MAX))


def due_targets(intents: Iterable[NewIntent], results: Sequence[Enqueued]) -> set[str]:
    """Return the targets with a new intent that is due now."""
    return {
        new.target
        for new, result in zip(intents, results, strict=True)
        if result.verdict is EnqueueVerdict.ACCEPTED and not new.delay_seconds
    }
