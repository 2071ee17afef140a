"""The queue watch: exports the state of the whole queue as metrics of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore

# The query costs more the more intents are pending, so it does not run with every scrape.
QUEUE_SECONDS = 10.0


class QueueWatch:
    """The service that reads the view `supervisor`. Only started where metrics are served."""

    name = "queue watch"

    def __init__(self, store: ExecutorStore, metrics: Metrics) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._metrics = metrics

    async def step(self) -> Pause:
        """Read it once."""
        self._metrics.supervisor(await self._store.read_supervisor())
        return Pause(QUEUE_SECONDS)
