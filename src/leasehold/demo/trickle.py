"""What `leasehold demo` submits: a target of each class at the sandbox, and a trickle for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.demo.stage import LEASE_SECONDS
from leasehold.domain.contract import Contract, HttpTerms, RetryTerms
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.contract import Guarantee
    from leasehold.store.postgres.store import PostgresStore

TARGETS: Mapping[str, Guarantee] = {
    "payments": "keyed",
    "ledger": "fenced",
    "payouts": "lookup",
    "letters": "blind",
}
_TICK_SECONDS = 0.1
_AGAIN_SECONDS = 0.5
_BATCH_MAX = 100
_TAKEN = {EnqueueVerdict.ACCEPTED, EnqueueVerdict.DUPLICATE}


def contracts(sandbox_url: str) -> list[Contract]:
    """Write the terms of each target; what they leave out has its default."""
    return [_contract(target, sandbox_url) for target in TARGETS]


def _contract(target: str, sandbox_url: str) -> Contract:
    guarantee = TARGETS[target]
    place = f"{sandbox_url}/{guarantee}"
    return Contract(
        target=target,
        scope="item",
        guarantee=guarantee,
        gateway=HttpTerms(
            url=place,
            lookup_url=f"{place}/{{key}}" if guarantee == "lookup" else None,
            allow_private=True,
        ),
        retry=RetryTerms(first_seconds=1.0, longest_seconds=5.0),
        lease_seconds=LEASE_SECONDS,
        call_timeout_seconds=3.0,
        connect_timeout_seconds=1.0,
    )


class Trickle:
    """Enqueues a few intents per second, until it is closed."""

    def __init__(self, store: PostgresStore, rate_per_second: float) -> None:
        # What we were told is accepted, by target.
        self.accepted: Counter[str] = Counter()
        self._intake = Intake(store)
        self._rate = rate_per_second
        self._numbered = 0
        self._is_open = True
        self._under_way = 0

    @property
    def is_quiet(self) -> bool:
        """Whether it is closed, and nothing is on its way to the database any more."""
        return not self._is_open and self._under_way == 0

    def close(self) -> None:
        """Enqueue no more."""
        self._is_open = False

    async def run(self) -> None:
        """Keep to the rate; after a pause of the database, do not make up for all of it."""
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
        """Enqueue so many, over the targets in turn; again under the same keys if nobody knows."""
        self._under_way += 1
        try:
            await self._enqueue([self._next() for _ in range(count)])
        finally:
            self._under_way -= 1

    async def _enqueue(self, batch: Sequence[NewIntent]) -> None:
        while True:
            try:
                answers = await self._intake.enqueue_many(batch)
                break
            except DatabaseUnavailable:
                await asyncio.sleep(_AGAIN_SECONDS)
        for new, answer in zip(batch, answers, strict=True):
            if answer.verdict not in _TAKEN:
                raise LeaseholdError(f"the database refused a sample intent: {answer}")
            self.accepted[new.target] += 1

    def _next(self) -> NewIntent:
        self._numbered += 1
        target = list(TARGETS)[self._numbered % len(TARGETS)]
        return NewIntent(
            target=target,
            payload={"sample": self._numbered, "amount": self._numbered * 7 % 1000},
            idempotency_key=f"sample-{self._numbered}",
        )
