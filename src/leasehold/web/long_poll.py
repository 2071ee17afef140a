"""Waiting for intents to be finished: all who wait share one look at the database.

It looks often for those who have just begun to wait, since most work is done at once, and less
often for those who have waited a while.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.store.protocol import ReaderStore
    from leasehold.store.rows import IntentStatus

    Waiter = asyncio.Future[None]

SOON_SECONDS = 0.02
LATER_SECONDS = 0.2
PATIENCE_SECONDS = 1.0
LOOK_MAX = 1000
_IDLE_SECONDS = 60.0


class Waits:
    """The service that looks for all who wait."""

    name = "waits"

    def __init__(self, store: ReaderStore) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._waiting: dict[IntentId, list[Waiter]] = {}
        self._last_began_at = 0.0
        self._is_in_no_hurry = True
        self._is_closed = False

    async def until_final(self, intent_id: IntentId, seconds: float) -> None:
        """Return when an intent is finished, when the time is over, or when we are stopping."""
        if self._is_closed or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        waiters = self._waiting.setdefault(intent_id, [])
        waiters.append(waiter)
        self._last_began_at = loop.time()
        if self._is_in_no_hurry:
            self.wake.set()
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(intent_id, None)

    async def step(self) -> Pause:
        """Look once, and go round where there are more than one look may ask for."""
        asked = list(self._waiting)[:LOOK_MAX]
        self._is_in_no_hurry = not asked
        if not asked:
            return Pause(_IDLE_SECONDS)
        found: list[IntentStatus] = await self._store.read_status(asked)
        for one in found:
            if one.status.is_final:
                _end(self._waiting.get(one.intent_id, ()))
        for intent_id in asked:  # to the end of the queue
            if intent_id in self._waiting:
                self._waiting[intent_id] = self._waiting.pop(intent_id)
        waited = asyncio.get_running_loop().time() - self._last_began_at
        self._is_in_no_hurry = waited > PATIENCE_SECONDS
        return Pause(LATER_SECONDS if self._is_in_no_hurry else SOON_SECONDS)

    def close(self) -> None:
        """Let everybody go with what is known."""
        self._is_closed = True
        for waiters in self._waiting.values():
            _end(waiters)


def _end(waiters: list[Waiter] | tuple[()]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
