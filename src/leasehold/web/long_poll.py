"""Long polls: requests that wait for an intent to finish share one query.

The query runs often while a request has just begun to wait, because most intents finish at once,
and less often later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.store.reader_protocol import StatusStore
    from leasehold.store.reader_rows import IntentStatus

    Waiter = asyncio.Future[None]

SOON_SECONDS = 0.02
LATER_SECONDS = 0.2
# How long after the last waiter began the query runs often.
EAGER_SECONDS = 1.0
PAGE = 1000
_IDLE_SECONDS = 60.0


class LongPoll:
    """The service that queries for all waiters."""

    name = "long poll"

    def __init__(self, store: StatusStore) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._waiting: dict[IntentId, list[Waiter]] = {}
        self._last_began_at = 0.0
        self._is_slow = True
        self._is_closed = False

    async def until_final(self, intent_id: IntentId, seconds: float) -> None:
        """Return when an intent is finished, the time is over, or the instance stops."""
        if self._is_closed or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        waiters = self._waiting.setdefault(intent_id, [])
        waiters.append(waiter)
        self._last_began_at = loop.time()
        if self._is_slow:
            self.wake.set()
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(intent_id, None)

    async def step(self) -> Pause:
        """Query the first PAGE intents, and move those that are unfinished to the end."""
        page = list(self._waiting)[:PAGE]
        self._is_slow = not page
        if not page:
            return Pause(_IDLE_SECONDS)
        found: list[IntentStatus] = await self._store.read_status(page)
        for one in found:
            if one.status.is_final:
                _release(self._waiting.get(one.intent_id, ()))
        for intent_id in page:
            if intent_id in self._waiting:
                self._waiting[intent_id] = self._waiting.pop(intent_id)
        waited = asyncio.get_running_loop().time() - self._last_began_at
        self._is_slow = waited > EAGER_SECONDS
        return Pause(LATER_SECONDS if self._is_slow else SOON_SECONDS)

    def close(self) -> None:
        """Release all waiters."""
        self._is_closed = True
        for waiters in self._waiting.values():
            _release(waiters)


def _release(waiters: list[Waiter] | tuple[()]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
