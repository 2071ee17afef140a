"""The interface of an engine in the benchmark: four methods, the same for all.

Engine modules, except our own, import nothing from Leasehold or from each other: they run in the
peers' virtual environment.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    # Called with the number of an item when its call begins; from any thread.
    Called = Callable[[int], None]

BULK = 1_000
QUEUE = "bench"

# How many calls a worker makes at a time; each engine has its own best number by default.
SLOTS_NAME = "BENCHMARK_SLOTS"
SLOTS = int(os.environ.get(SLOTS_NAME, "0"))
# How long each call takes.
WORK_SECONDS_NAME = "BENCHMARK_WORK_SECONDS"
WORK_SECONDS = float(os.environ.get(WORK_SECONDS_NAME, "0"))


async def work_a_little() -> None:
    """Take as long as a call of the benchmark takes."""
    if WORK_SECONDS:
        await asyncio.sleep(WORK_SECONDS)


def payload(number: int) -> dict[str, Any]:
    """The payload of every item, in every engine."""
    return {
        "to": "+41 79 000 00 00",
        "text": "Your parcel arrives today.",
        "sender": "post",
        "number": number,
    }


class Producer(Protocol):
    """Enqueues items; each call returns when they are committed."""

    async def one(self, number: int) -> None: ...

    async def many(self, numbers: range) -> None:
        """Enqueue all of them in one bulk call; without one, in one transaction."""
        ...


class Engine(Protocol):
    """One engine with its best documented settings."""

    # Packages whose versions are reported.
    distributions: tuple[str, ...]
    # Its settings, for the report.
    settings: str
    # SQL that counts unfinished items; None if that costs more than the work itself.
    unfinished: str | None
    # Whether its own documentation runs it on uvloop.
    on_uvloop: bool

    async def install(self, url: str) -> None:
        """Create its schema in an empty database."""
        ...

    def producer(self, url: str) -> AbstractAsyncContextManager[Producer]: ...

    async def work(self, url: str, called: Called) -> None:
        """Run one worker until the process ends; its calls only report that they began."""
        ...
