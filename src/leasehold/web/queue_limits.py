"""Which targets have as many unfinished intents as their contracts allow, about once a second.

Approximate on purpose: between two looks more may be accepted than `pending_max` says, by this
instance and by all others; to count exactly, every enqueue would have to wait for every other one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasehold.coordination.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.store.protocol import ReaderStore

LOOK_SECONDS = 1.0
CONTRACTS_SECONDS = 5.0


class QueueLimits:
    """The service that looks."""

    name = "queue limits"

    def __init__(self, store: ReaderStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._clock = clock
        self._limits: dict[str, int] = {}
        self._contracts_due_at = clock()
        self._full: frozenset[str] = frozenset()

    async def step(self) -> Pause:
        """Look once."""
        if self._clock() >= self._contracts_due_at:
            self._limits = {
                contract.target: contract.pending_max
                for contract in await self._store.read_contracts()
                if contract.pending_max is not None
            }
            self._contracts_due_at = self._clock() + CONTRACTS_SECONDS
        depths = await self._store.read_queue_depths(self._limits) if self._limits else {}
        self._full = frozenset(
            target for target, depth in depths.items() if depth >= self._limits[target]
        )
        return Pause(LOOK_SECONDS)

    def is_full(self, target: str) -> bool:
        """Say whether a target had its fill when we last looked."""
        return target in self._full
