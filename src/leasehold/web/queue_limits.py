"""Which targets have as many unfinished intents as their contracts allow.

The queues are looked at about once a second. What this instance accepts in between is counted here,
so that only what other instances took since the last look can go over a limit; to count exactly,
every enqueue would have to wait for every other one. What was finished since the last look is not
known either, so a queue that is full is looked at again soon when somebody asks for a place in it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.store.protocol import ReaderStore

LOOK_SECONDS = 1.0
SOON_SECONDS = 0.1
CONTRACTS_SECONDS = 5.0
# As many as one call takes.
PAGE = 1000


class QueueLimits:
    """The service that looks."""

    name = "queue limits"

    def __init__(self, store: ReaderStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._clock = clock
        self._limits: dict[str, int] = {}
        self._contracts_due_at = clock()
        self._soon_at = clock()
        self._depths: dict[str, int] = {}
        # On their way to the database, and accepted since the last look began.
        self._under_way: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    async def step(self) -> Pause:
        """Look once."""
        if self._clock() >= self._contracts_due_at:
            self._limits = {
                contract.target: contract.pending_max
                for contract in await self._store.read_contracts()
                if contract.pending_max is not None
            }
            self._contracts_due_at = self._clock() + CONTRACTS_SECONDS
        before = Counter(self._accepted)
        began_at = self._clock()
        self._soon_at = math.inf
        depths: dict[str, int] = {}
        for page in _pages(self._limits):
            depths |= await self._store.read_queue_depths(page)
        self._depths = depths
        # What was accepted during the look may be in it or not: it stays counted until the next.
        self._accepted -= before
        ended_at = self._clock()
        # A look counts rows: most of the time is to be left for others.
        self._soon_at = ended_at + max(SOON_SECONDS, 10 * (ended_at - began_at))
        return Pause(LOOK_SECONDS)

    def is_full(self, target: str) -> bool:
        """Say whether a target has its fill, as far as we know."""
        most = self._limits.get(target)
        return most is not None and self._depth(target) >= most

    def take(self, target: str) -> Place | None:
        """Take a place for one intent, until it is settled; None where there is none."""
        if target not in self._limits:
            return FREE
        if self.is_full(target):
            if self._clock() >= self._soon_at:
                self.wake.set()
            return None
        return _Taken(target, self._under_way, self._accepted)

    def _depth(self, target: str) -> int:
        return self._depths.get(target, 0) + self._under_way[target] + self._accepted[target]


class Place:
    """Of a target without a limit."""

    __slots__ = ()

    def settle(self, *, is_new: bool) -> None:
        """Say what became of the intent that had it; is_new also where nobody knows."""


class _Taken(Place):
    """Of a target with one."""

    __slots__ = ("_accepted", "_target", "_under_way")

    def __init__(self, target: str, under_way: Counter[str], accepted: Counter[str]) -> None:
        self._target = target
        self._under_way = under_way
        self._accepted = accepted
        under_way[target] += 1

    def settle(self, *, is_new: bool) -> None:
        self._under_way[self._target] -= 1
        if is_new:
            self._accepted[self._target] += 1


FREE = Place()


def _pages(limits: dict[str, int]) -> Iterator[dict[str, int]]:
    rest = iter(limits.items())
    while page := dict(islice(rest, PAGE)):
        yield page
