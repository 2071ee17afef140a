"""Who may hand in what: tokens are for targets, and targets have limits.

The repetition of an intent that was accepted gets its answer also from a queue that is full: it
adds nothing. Whether a key is one of an intent that is known costs a look at the database, so that
is asked only where the queue is full, by a few at a time. If it is, enqueue_intents decides as
always; it writes nothing under a key that is taken.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from leasehold.web.auth import require_target
from leasehold.web.problems import RETRY_SECONDS, Problem
from leasehold.web.queue_limits import FREE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.intent import NewIntent
    from leasehold.web.queue_limits import Place, QueueLimits

    # A target, and a key.
    Asked = tuple[str, str]

# Of the few connections that readers share, some are left for others.
LOOKUPS_MAX = 2


class KnownKeys(Protocol):
    """Where keys are looked up: the part of a store that this needs."""

    async def read_known_keys(self, asked: Collection[Asked]) -> set[Asked]:
        """Say which keys stand for an intent already."""
        ...


class Admission:
    """Gives places in the queues of targets."""

    def __init__(self, limits: QueueLimits, keys: KnownKeys) -> None:
        self._limits = limits
        self._keys = keys
        self._looking = asyncio.Semaphore(LOOKUPS_MAX)

    async def admit(self, token: ApiToken, new: NewIntent) -> Place:
        """Give a place to one intent, or refuse it; whoever has a place settles it."""
        require_target(token, new.target)
        place = self._limits.take(new.target)
        if place is None:
            if not await self._known([new]):
                raise _full()
            place = FREE
        return place

    async def admit_many(
        self, token: ApiToken, intents: Sequence[NewIntent | Problem]
    ) -> list[Place | Problem]:
        """Do the same for the intents of a batch; one that was refused before stays so."""
        found = [self._taken(token, one) for one in intents]
        kept_out = [one for one, place in zip(intents, found, strict=True) if place is None]
        try:
            known = await self._known(kept_out)
        except BaseException:
            for place in found:
                if place is not None and not isinstance(place, Problem):
                    place.settle(is_new=False)
            raise
        return [
            place if place is not None else FREE if _asked(one) in known else _full()
            for one, place in zip(intents, found, strict=True)
        ]

    def _taken(self, token: ApiToken, new: NewIntent | Problem) -> Place | Problem | None:
        if isinstance(new, Problem):
            return new
        try:
            require_target(token, new.target)
        except Problem as problem:
            return problem
        return self._limits.take(new.target)

    async def _known(self, intents: Sequence[NewIntent | Problem]) -> set[Asked]:
        asked = {key for one in intents if (key := _asked(one)) is not None}
        if not asked:
            return set()
        async with self._looking:
            return await self._keys.read_known_keys(asked)


def _asked(new: NewIntent | Problem) -> Asked | None:
    if isinstance(new, Problem) or new.idempotency_key is None:
        return None
    return new.target, new.idempotency_key


def _full() -> Problem:
    return Problem(
        "queue_full",
        "wait until some of the target's intents are finished",
        retry_seconds=RETRY_SECONDS,
    )
