"""Group commit: concurrent callers share calls of enqueue_intents; each answer follows its commit.

A lonely intent goes at once. While a call is under way, whatever comes gathers, and goes together
with the next one: the busier it is, the more intents share a commit, and nobody waits for a timer.

What one caller brings is not to hurt the others:

- A call that takes unusually long (an intent waits for a lock that somebody holds) does not stop
  the rest: after a moment of patience the next call begins beside it, up to a few at a time.
  Intents of a stream that is in such a call wait for it, as they would in the database.
- A call that failed because of one intent in it wrote nothing, so its parts are tried again alone.
- Waiting is bounded in number and in bytes. What does not fit is refused at once (IntakeFull).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, IntakeFull
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.notify import Wakeups
from leasehold.intake.validation import UNREADABLE
from leasehold.observe.logs import get_logger
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.domain.intent import NewIntent
    from leasehold.store.protocol import IngestStore

    # How many intents a call had, and how long it took.
    Observe = Callable[[int, float], None]
    # A target's stream, or None for what keeps no order.
    Stream = tuple[str, str] | None

WAITING_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024
BATCH_MAX = 1000
BATCH_BYTES_MAX = 4 * 1024 * 1024
CALLS_MAX = 4
# A call is over within milliseconds; one that is not waits for something.
PATIENCE_SECONDS = 0.05
# Nobody waits longer than this for another try of a call that failed.
RETRY_SECONDS_MAX = 10.0
_CLOSE_SECONDS = 15.0

# The server has rolled back because of a lock: lock_timeout, deadlock.
_ENTANGLED = frozenset({"55P03", "40P01"})

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Waiting:
    """One intent, and whoever waits for what becomes of it."""

    new: NewIntent
    size: int
    since: float
    answer: asyncio.Future[Enqueued | Exception]


class Batching:
    """Hands intents in for many callers: `await batching.enqueue(new)`; close() at the end."""

    def __init__(
        self,
        store: IngestStore,
        *,
        waiting_max: int = WAITING_MAX,
        bytes_max: int = BYTES_MAX,
        batch_max: int = BATCH_MAX,
        patience_seconds: float = PATIENCE_SECONDS,
        notify: bool = True,
        observe: Observe | None = None,
    ) -> None:
        self._store = store
        self._waiting_max = waiting_max
        self._bytes_max = bytes_max
        self._batch_max = batch_max
        self._patience_seconds = patience_seconds
        self._wakeups = Wakeups(store) if notify else None
        self._observe = observe
        self._waiting: deque[_Waiting] = deque()
        # The streams of the calls under way, each with what waits for its call to end.
        self._busy: dict[Stream, list[_Waiting]] = {}
        self._count = 0
        self._bytes = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._slow_calls = 0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many intents wait for their call to begin."""
        return self._count

    async def enqueue(self, new: NewIntent, *, size: int = 0) -> Enqueued:
        """Accept one intent, together with whatever else is there; when this returns it is
        committed. `ordinal` is its place in the call that it went with.

        Raises IntakeFull where too much waits already, or too many bytes (`size` is its share).
        After DatabaseUnavailable nothing is known, and with a key it is safe to try again.
        """
        self._require_room(size)
        one = self._added(new, size)
        answer = await one.answer
        if isinstance(answer, Enqueued):
            return answer
        if isinstance(answer, DatabaseUnavailable):
            # One of its own for each caller: a traceback grows on whatever is raised.
            raise DatabaseUnavailable(str(answer), sqlstate=answer.sqlstate) from answer
        raise answer

    async def enqueue_many(
        self, intents: Sequence[NewIntent], *, size: int = 0
    ) -> list[Enqueued | Exception]:
        """Accept some intents of one caller: what became of each, or why that is not known.

        Raises IntakeFull where there is no room for all of them; then none was taken.
        """
        if self._count + len(intents) > self._waiting_max:
            raise IntakeFull(f"{self._count} intents wait already: try again in a moment")
        self._require_room(size)
        each = size // max(1, len(intents))
        waiting = [self._added(new, each) for new in intents]
        return [await one.answer for one in waiting]

    async def close(self) -> None:
        """Take nothing more, and answer whoever waits."""
        self._is_closed = True
        ends_at = asyncio.get_running_loop().time() + _CLOSE_SECONDS
        while self._calls:
            left = ends_at - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(self._calls, timeout=max(0.0, left))
            if not done:
                break
        for call in self._calls:
            call.cancel()
        for one in (*self._waiting, *chain(*self._busy.values())):
            _tell(one, IntakeFull("this instance is stopping: try again with another one"))
        self._waiting.clear()
        if self._wakeups is not None:
            await self._wakeups.close()

    def _require_room(self, size: int) -> None:
        if self._is_closed or self._count >= self._waiting_max:
            raise IntakeFull(f"{self._count} intents wait already: try again in a moment")
        if self._bytes + size > self._bytes_max:
            raise IntakeFull(f"{self._bytes} bytes wait already: try again in a moment")

    def _added(self, new: NewIntent, size: int) -> _Waiting:
        loop = asyncio.get_running_loop()
        one = _Waiting(new, size, loop.time(), loop.create_future())
        self._busy.get(_stream(new), self._waiting).append(one)
        self._count += 1
        self._bytes += size
        self._call_if_free()
        return one

    def _call_if_free(self) -> None:
        """Begin a call, unless one is under way that will be over in a moment."""
        if self._waiting and len(self._calls) == self._slow_calls < CALLS_MAX:
            # It takes its batch when it runs: whoever comes before that is in it.
            call = asyncio.create_task(self._call())
            self._calls.add(call)
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._call_if_free()

    async def _call(self) -> None:
        batch = self._take()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        is_slow = False

        def lose_patience() -> None:
            nonlocal is_slow
            is_slow = True
            self._slow_calls += 1
            self._call_if_free()

        patience = loop.call_later(self._patience_seconds, lose_patience)
        try:
            await self._settle(batch)
        finally:
            patience.cancel()
            self._slow_calls -= is_slow
            self._let_go(batch)
        if self._observe is not None and batch:
            self._observe(len(batch), loop.time() - began_at)

    def _take(self) -> list[_Waiting]:
        """Take what goes with the next call, and keep its streams to that call."""
        batch: list[_Waiting] = []
        streams: dict[Stream, list[_Waiting]] = {}
        size = 0
        while self._waiting and len(batch) < self._batch_max and size < BATCH_BYTES_MAX:
            one = self._waiting.popleft()
            stream = _stream(one.new)
            if one.answer.done():  # its caller has gone
                self._count -= 1
                self._bytes -= one.size
            elif stream in self._busy:
                self._busy[stream].append(one)
            else:
                batch.append(one)
                size += one.size
                if stream is not None:
                    streams[stream] = []
        self._count -= len(batch)
        self._busy |= streams
        return batch

    def _let_go(self, batch: Sequence[_Waiting]) -> None:
        for one in batch:
            self._bytes -= one.size
            # Only where the call was cancelled:
            _tell(one, DatabaseUnavailable("this instance stopped before the database answered"))
        for stream in {_stream(one.new) for one in batch}:
            self._waiting.extendleft(reversed(self._busy.pop(stream, ())))

    async def _settle(self, batch: Sequence[_Waiting]) -> None:
        """Hand a batch in and tell everybody; if it fails for a part of it, part by part."""
        batch = [one for one in batch if not one.answer.done()]
        if not batch:
            return
        try:
            answers = await self._store.enqueue_intents([one.new for one in batch])
        except Exception as error:  # noqa: BLE001 (whatever it is, each caller gets it)
            await self._settle_parts(batch, error)
        else:
            self._answer(batch, answers)

    async def _settle_parts(self, batch: Sequence[_Waiting], error: Exception) -> None:
        parts = _parts(batch, error)
        if not parts:
            told = _refusal(error) if isinstance(error, UNREADABLE) else error
            for one in batch:
                _tell(one, told)
            return
        _LOG.info("batch_divided", intents=len(batch), parts=len(parts), error=str(error))
        for part in parts:
            oldest = asyncio.get_running_loop().time() - RETRY_SECONDS_MAX
            for one in part:
                if one.since < oldest:
                    _tell(one, error)
            await self._settle(part)

    def _answer(self, batch: Sequence[_Waiting], answers: Sequence[Enqueued]) -> None:
        woken: set[str] = set()
        for one, answer in zip(batch, answers, strict=True):
            _tell(one, answer)
            if answer.verdict is EnqueueVerdict.ACCEPTED and not one.new.delay_seconds:
                woken.add(one.new.target)
        if self._wakeups is not None and woken:
            self._wakeups.wake(woken, len(batch))


def _parts(batch: Sequence[_Waiting], error: Exception) -> list[Sequence[_Waiting]]:
    """Divide a batch of which nothing was written; nothing, where that would change nothing."""
    is_entangled = isinstance(error, DatabaseUnavailable) and error.sqlstate in _ENTANGLED
    if len(batch) == 1 or not (is_entangled or isinstance(error, UNREADABLE)):
        return []
    if is_entangled:
        # Streams are what is locked for long, each by somebody's open transaction.
        by_stream: dict[Stream, list[_Waiting]] = {}
        for one in batch:
            by_stream.setdefault(_stream(one.new), []).append(one)
        if len(by_stream) > 1:
            return list(by_stream.values())
        if None not in by_stream:
            return []
    half = len(batch) // 2
    return [batch[:half], batch[half:]]


def _stream(new: NewIntent) -> Stream:
    return None if new.stream is None else (new.target, new.stream)


def _refusal(error: Exception) -> Enqueued:
    return Enqueued(ordinal=1, verdict=EnqueueVerdict.INVALID, intent_id=None, problem=str(error))


def _tell(one: _Waiting, answer: Enqueued | Exception) -> None:
    if not one.answer.done():
        one.answer.set_result(answer)
