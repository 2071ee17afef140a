"""Shows the state of the whole queue in the metrics of this process, where metrics are served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore

# Its cost grows with what is unfinished, so it is not asked for with every scrape.
QUEUE_SECONDS = 10.0


class QueueWatch:
    """The service that asks."""

    name = "queue watch"

    def __init__(self, store: ExecutorStore, metrics: Metrics) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._metrics = metrics

    async def step(self) -> Pause:
        """Ask once."""
        self._metrics.supervisor(await self._store.read_supervisor())
        return Pause(QUEUE_SECONDS)
