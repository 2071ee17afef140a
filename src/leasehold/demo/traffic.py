"""The demo's client: enqueues sample intents for all targets at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.demo.sandbox import TARGETS
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.store.postgres.store import PostgresStore

_TICK_SECONDS = 0.1
_RETRY_SECONDS = 0.5
_BATCH_MAX = 100
_COMMITTED = {EnqueueVerdict.ACCEPTED, EnqueueVerdict.DUPLICATE}


class Traffic:
    """Enqueues intents until it is closed."""

    def __init__(self, store: PostgresStore, rate_per_second: float) -> None:
        # Committed intents by target, according to the answers of the database.
        self.enqueued: Counter[str] = Counter()
        self._intake = Intake(store)
        self._rate = rate_per_second
        self._created = 0
        self._is_open = True
        self._calls_in_flight = 0

    @property
    def is_finished(self) -> bool:
        """Whether it is closed and no call is in flight."""
        return not self._is_open and self._calls_in_flight == 0

    def close(self) -> None:
        """Enqueue no more."""
        self._is_open = False

    async def run(self) -> None:
        """Keep the rate. After an outage of the database, catch up with one batch at most."""
        async with self._intake:
            last_at, owed = time.monotonic(), 1.0
            while True:
                if self._is_open and owed >= 1:
                    await self.enqueue(int(owed))
                    owed -= int(owed)
                await asyncio.sleep(_TICK_SECONDS)
                now = time.monotonic()
                owed, last_at = min(owed + (now - last_at) * self._rate, _BATCH_MAX), now

    async def enqueue(self, count: int) -> None:
        """Enqueue this many intents, round-robin over the targets."""
        self._calls_in_flight += 1
        try:
            await self._enqueue([self._next_intent() for _ in range(count)])
        finally:
            self._calls_in_flight -= 1

    async def _enqueue(self, batch: Sequence[NewIntent]) -> None:
        while True:
            try:
                answers = await self._intake.enqueue_many(batch)
                break
            except DatabaseUnavailable:
                # Outcome unknown. The idempotency keys make it safe to repeat.
                await asyncio.sleep(_RETRY_SECONDS)
        for new, answer in zip(batch, answers, strict=True):
            if answer.verdict not in _COMMITTED:
                raise LeaseholdError(f"the database refused a sample intent: {answer}")
            self.enqueued[new.target] += 1

    def _next_intent(self) -> NewIntent:
        self._created += 1
        return NewIntent(
            target=list(TARGETS)[self._created % len(TARGETS)],
            payload={"sample": self._created, "amount": self._created * 7 % 1000},
            idempotency_key=f"sample-{self._created}",
        )
