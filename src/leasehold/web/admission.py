"""Which intents are admitted: the token must cover the target, and its queue must not be full.

A contract may limit the unfinished intents of its target (`pending_max`). One instance at a time
counts the queues, and the database says when: at most 50,000 rows a second, whatever the number of
instances. All of them read the last count every second, and each adds what it has accepted itself
since then. What other instances accept since the last count can therefore exceed a limit; an exact
count would make every enqueue wait for every other one. When an intent arrives for a full queue,
the instance reads the count again soon.

A repeated intent adds nothing, so it is admitted to a full queue. Whether its key is known costs a
query, which only runs if the queue is full, and only a few at a time. enqueue_intents then answers
as always: it writes nothing under a known key.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from leasehold.service.service import Pause
from leasehold.web.auth import require_target
from leasehold.web.problems import RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.intent import NewIntent
    from leasehold.store.reader_protocol import KeyStore, QueueDepthStore, TargetKey
    from leasehold.store.reader_rows import QueueDepth

COUNT_SECONDS = 1.0
RECOUNT_SECONDS = 0.1
# How exactly and for how long to remember when intents were accepted.
MARK_SECONDS = 0.1
MARKS_MAX = 100
# Leaves some of the few reader connections to others.
LOOKUPS_MAX = 2


class QueueLimits:
    """The service that reads how full the queues with a limit are, and counts if it is its turn."""

    name = "queue limits"

    def __init__(self, store: QueueDepthStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._clock = clock
        self._recount_at = clock()
        self._queues: dict[str, _Queue] = {}

    async def step(self) -> Pause:
        """Count if a turn is due, and read the last count."""
        began_at = self._clock()
        self._recount_at = math.inf
        for queue in self._queues.values():
            queue.mark(began_at)
        turn_no = await self._store.begin_watch_turn("depths")
        if turn_no is not None:
            await self._store.record_queue_depths(turn_no)
        sent_at = self._clock()
        rows = await self._store.read_queue_depths()
        # No await between these lines: until the last one, queues have no limit.
        known, self._queues = self._queues, {}
        for row in rows:
            queue = self._queues[row.target] = known.get(row.target) or _Queue(self._clock)
            queue.learn(row, sent_at)
        ended_at = self._clock()
        self._recount_at = ended_at + max(RECOUNT_SECONDS, 10 * (ended_at - began_at))
        return Pause(COUNT_SECONDS)

    def is_full(self, target: str) -> bool:
        """Whether a queue is full, as far as this instance knows."""
        queue = self._queues.get(target)
        return queue is not None and queue.is_full

    def reserve(self, target: str) -> Reservation | None:
        """Reserve room for one intent until it is settled; None if the queue is full."""
        queue = self._queues.get(target)
        if queue is None:
            return UNLIMITED
        if queue.is_full:
            if self._clock() >= self._recount_at:
                self.wake.set()
            return None
        return _Counted(queue)


class _Queue:
    """The last count of one queue, and what this instance has accepted since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reserved = 0  # on their way to the database
        self._clock = clock
        self._limit = 0
        self._depth = 0
        self._seen_at: datetime | None = None
        self._accepted = 0  # by this instance, since it started
        self._counted = 0  # how many of them the last count certainly includes
        # Moments, and how many had been accepted by then.
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS_MAX)

    @property
    def is_full(self) -> bool:
        return self._depth + self.reserved + self._accepted - self._counted >= self._limit

    def accept(self) -> None:
        self._accepted += 1
        now = self._clock()
        if not self._marks or now >= self._marks[-1][0] + MARK_SECONDS:
            self.mark(now)

    def mark(self, now: float) -> None:
        self._marks.append((now, self._accepted))

    def learn(self, row: QueueDepth, sent_at: float) -> None:
        """Learn a count. It may be another instance's, and it may have been made a while ago."""
        self._limit = row.pending_max
        if row.seen_at == self._seen_at:
            return
        self._depth, self._seen_at = row.depth, row.seen_at
        # The count includes what was accepted before it began. It may lack what came later, so
        # that is added: the sum may be too high, never too low.
        counted_at = -math.inf if row.age_seconds is None else sent_at - row.age_seconds
        while self._marks and self._marks[0][0] <= counted_at:
            self._counted = self._marks.popleft()[1]


class Reservation:
    """Room for one intent in a queue; this class is for targets without a limit."""

    __slots__ = ()

    def settle(self, *, is_new: bool) -> None:
        """End the reservation; `is_new` if the intent was, or may have been, written."""


class _Counted(Reservation):
    __slots__ = ("_queue",)

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        queue.reserved += 1

    def settle(self, *, is_new: bool) -> None:
        self._queue.reserved -= 1
        if is_new:
            self._queue.accept()


UNLIMITED = Reservation()


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
        keys = {key for one in intents if (key := _key(one)) is not None}
        if not keys:
            return set()
        async with self._lookups:
            return await self._keys.read_known_keys(keys)


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
