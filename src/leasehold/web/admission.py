"""Which intents are admitted: the token must cover the target, and its queue must not be full.

A contract may limit the unfinished intents of its target (`pending_max`). Each instance counts the
queues about once a second and adds what it accepts itself in between. What other instances accept
since the last count can therefore exceed a limit; an exact count would make every enqueue wait for
every other one. A full queue is counted again soon when a client asks for it.

A repeated intent adds nothing, so it is admitted to a full queue. Whether its key is known costs a
query, which only runs if the queue is full, and only a few at a time. enqueue_intents then answers
as always: it writes nothing under a known key.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from leasehold.service.service import Pause
from leasehold.web.auth import require_target
from leasehold.web.problems import RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.intent import NewIntent
    from leasehold.store.protocol import ReaderStore

    # A target, a key, and whether the key is one of all targets.
    TargetKey = tuple[str, str, bool]

COUNT_SECONDS = 1.0
RECOUNT_SECONDS = 0.1
CONTRACTS_SECONDS = 5.0
# The maximum of one call.
PAGE = 1000
# Leaves some of the few reader connections to others.
LOOKUPS_MAX = 2


class QueueLimits:
    """The service that counts the queues with a limit."""

    name = "queue limits"

    def __init__(self, store: ReaderStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._clock = clock
        self._limits: dict[str, int] = {}
        self._contracts_due_at = clock()
        self._recount_at = clock()
        self._depths: dict[str, int] = {}
        # On their way to the database, and accepted since the last count began.
        self._reserved: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    async def step(self) -> Pause:
        """Count once."""
        if self._clock() >= self._contracts_due_at:
            self._limits = {
                contract.target: contract.pending_max
                for contract in await self._store.read_contracts()
                if contract.pending_max is not None
            }
            self._contracts_due_at = self._clock() + CONTRACTS_SECONDS
        before = Counter(self._accepted)
        began_at = self._clock()
        self._recount_at = math.inf
        depths: dict[str, int] = {}
        for page in _pages(self._limits):
            depths |= await self._store.read_queue_depths(page)
        self._depths = depths
        # What was accepted during the count may or may not be in it, so it counts until the next.
        self._accepted -= before
        ended_at = self._clock()
        # A count scans rows, so it may use a tenth of the time at most.
        self._recount_at = ended_at + max(RECOUNT_SECONDS, 10 * (ended_at - began_at))
        return Pause(COUNT_SECONDS)

    def is_full(self, target: str) -> bool:
        """Whether a queue is full, as far as this instance knows."""
        limit = self._limits.get(target)
        return limit is not None and self._depth(target) >= limit

    def reserve(self, target: str) -> Reservation | None:
        """Reserve room for one intent until it is settled; None if the queue is full."""
        if target not in self._limits:
            return UNLIMITED
        if self.is_full(target):
            if self._clock() >= self._recount_at:
                self.wake.set()
            return None
        return _Counted(target, self._reserved, self._accepted)

    def _depth(self, target: str) -> int:
        return self._depths.get(target, 0) + self._reserved[target] + self._accepted[target]


class Reservation:
    """Room for one intent in a queue; this class is for targets without a limit."""

    __slots__ = ()

    def settle(self, *, is_new: bool) -> None:
        """End the reservation; `is_new` if the intent was, or may have been, written."""


class _Counted(Reservation):
    __slots__ = ("_accepted", "_reserved", "_target")

    def __init__(self, target: str, reserved: Counter[str], accepted: Counter[str]) -> None:
        self._target = target
        self._reserved = reserved
        self._accepted = accepted
        reserved[target] += 1

    def settle(self, *, is_new: bool) -> None:
        self._reserved[self._target] -= 1
        if is_new:
            self._accepted[self._target] += 1


UNLIMITED = Reservation()


class KeyStore(Protocol):
    """The part of a store that looks up keys."""

    async def read_known_keys(self, asked: Collection[TargetKey]) -> set[TargetKey]:
        """Return the keys that belong to an intent already."""
        ...


class Admission:
    """Admits intents to the queues of their targets."""

    def __init__(self, limits: QueueLimits, keys: KeyStore) -> None:
        self._limits = limits
        self._keys = keys
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)

    async def admit(self, token: ApiToken, new: NewIntent) -> Reservation:
        """Reserve room for one intent, or refuse it. The caller settles the reservation."""
        _require_covered(token, new)
        reservation = self._limits.reserve(new.target)
        if reservation is None:
            if not await self._known([new]):
                raise _full()
            reservation = UNLIMITED
        return reservation

    async def admit_many(
        self, token: ApiToken, intents: Sequence[NewIntent | Problem]
    ) -> list[Reservation | Problem]:
        """Do the same for a batch; a problem that was found before stays in its place."""
        found = [self._reserve(token, one) for one in intents]
        refused = [one for one, found_one in zip(intents, found, strict=True) if found_one is None]
        try:
            known = await self._known(refused)
        except BaseException:
            for one in found:
                if isinstance(one, Reservation):
                    one.settle(is_new=False)
            raise
        return [
            found_one if found_one is not None else UNLIMITED if _key(one) in known else _full()
            for one, found_one in zip(intents, found, strict=True)
        ]

    def _reserve(self, token: ApiToken, new: NewIntent | Problem) -> Reservation | Problem | None:
        if isinstance(new, Problem):
            return new
        try:
            _require_covered(token, new)
        except Problem as problem:
            return problem
        return self._limits.reserve(new.target)

    async def _known(self, intents: Sequence[NewIntent | Problem]) -> set[TargetKey]:
        asked = {key for one in intents if (key := _key(one)) is not None}
        if not asked:
            return set()
        async with self._lookups:
            return await self._keys.read_known_keys(asked)


def _key(new: NewIntent | Problem) -> TargetKey | None:
    if isinstance(new, Problem) or new.idempotency_key is None:
        return None
    return new.target, new.idempotency_key, new.key_scope == "all"


def _require_covered(token: ApiToken, new: NewIntent) -> None:
    """Refuse a token for other targets, and a key that reaches targets of other tokens.

    A conflict of such a key would tell of an intent that the token may not see, and the key would
    keep others from using it.
    """
    require_target(token, new.target)
    if new.key_scope == "all" and token.targets is not None:
        raise Problem(
            "forbidden",
            f"The token {token.name!r} does not cover all targets: leave out key_scope.",
        )


def _full() -> Problem:
    return Problem(
        "queue_full",
        "Retry when some of the target's intents are finished.",
        retry_seconds=RETRY_SECONDS,
    )


def _pages(limits: dict[str, int]) -> Iterator[dict[str, int]]:
    rest = iter(limits.items())
    while page := dict(islice(rest, PAGE)):
        yield page
