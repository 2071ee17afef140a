"""Procrastinate with its `lock`: jobs of one lock run one after the other."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks import peer_procrastinate
from benchmarks.peer_engine import payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from procrastinate.tasks import Task

STREAMS = int(os.environ.get("BENCHMARK_STREAMS", "1000"))


class Engine(peer_procrastinate.Engine):
    """The same, with a lock for each stream."""

    settings = f"{STREAMS} locks, {peer_procrastinate.Engine.settings}"

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with peer_procrastinate.deferring(url) as task:
            yield Producer(task)


class Producer(peer_procrastinate.Producer):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._locked = task

    async def many(self, numbers: range) -> None:
        # One call has one lock.
        for one in numbers:
            await self._locked.configure(lock=f"s{one % STREAMS}").defer_async(**payload(one))
