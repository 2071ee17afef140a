"""The queue watch: exports the state of the whole queue as metrics of this process.

Every instance reads the last count, which costs one row. One instance at a time counts: the
database gives out the turns, and no turn comes sooner because a count has failed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.observe.metrics import Metrics
    from leasehold.store.reader_protocol import WatchStore

QUEUE_SECONDS = 10.0


class QueueWatch:
    """The service that counts when it is its turn. Only started where metrics are served."""

    name = "queue watch"
    retry_seconds = QUEUE_SECONDS

    def __init__(self, store: WatchStore, metrics: Metrics) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._metrics = metrics

    async def step(self) -> Pause:
        """Count if a turn is due, and read the last count."""
        turn_no = await self._store.begin_watch_turn("counts")
        next_seconds = turn_no and await self._store.record_queue_counts(turn_no)
        self._metrics.supervisor(await self._store.read_supervisor())
        # A large queue is counted in several turns. Whoever has begun goes on.
        return Pause(next_seconds or QUEUE_SECONDS)
