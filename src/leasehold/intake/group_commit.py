"""Group commit: concurrent callers share calls of enqueue_intents. A result follows its commit.

An intent that arrives alone is sent at once. While a call is running, new intents queue up and go
together with the next call: the higher the load, the more intents share a commit, and nobody waits
for a timer.

One caller must not harm the others:

- A call that is slow, because an intent in it waits for a lock, does not stop the rest: after
  `slow_seconds` the next call starts beside it, up to CALLS_MAX at a time. Intents of a stream that
  is part of a running call wait for that call, as they would in the database.
- A call that fails because of one intent has written nothing, so its parts are tried separately.
- The queue is bounded in number and in bytes. What does not fit is rejected at once (IntakeFull).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, IntakeFull, Unavailable
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.notify import Notifications, due_targets
from leasehold.intake.validation import INVALID_VALUE
from leasehold.observe.logs import get_logger
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.domain.intent import NewIntent
    from leasehold.store.protocol import IngestStore

    # Called with the number of intents of a call and its duration in seconds.
    Observe = Callable[[int, float], None]
    # Target and name of a stream, or None for an intent without one.
    Stream = tuple[str, str] | None

WAITING_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024
BATCH_MAX = 1000
BATCH_BYTES_MAX = 4 * 1024 * 1024
CALLS_MAX = 4
# A call takes milliseconds; one that takes longer waits for a lock.
SLOW_SECONDS = 0.05
# An intent that waited longer than this is not tried again after a failed call.
RETRY_SECONDS_MAX = 10.0
_CLOSE_SECONDS = 15.0
_STOPPING = "this instance is stopping: use another one"

# Without the database's own words, which may quote the value.
_INVALID = Enqueued(
    ordinal=1,
    verdict=EnqueueVerdict.INVALID,
    intent_id=None,
    problem="the database cannot take a value of this intent",
)

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Item:
    """One intent, and the future that its caller awaits."""

    new: NewIntent
    stream: Stream
    size: int
    queued_at: float
    result: asyncio.Future[Enqueued | Exception]

    def finish(self, result: Enqueued | Exception) -> None:
        """Give the caller its result, unless it has one or is gone."""
        if not self.result.done():
            self.result.set_result(result)


class GroupCommit:
    """Enqueues for many callers: `await group_commit.enqueue(new)`; call close() at the end."""

    def __init__(
        self,
        store: IngestStore,
        *,
        waiting_max: int = WAITING_MAX,
        bytes_max: int = BYTES_MAX,
        batch_max: int = BATCH_MAX,
        slow_seconds: float = SLOW_SECONDS,
        notify: bool = True,
        observe: Observe | None = None,
    ) -> None:
        self._store = store
        self._waiting_max = waiting_max
        self._bytes_max = bytes_max
        self._batch_max = batch_max
        self._slow_seconds = slow_seconds
        self._notifications = Notifications(store) if notify else None
        self._observe = observe
        self._queue: deque[_Item] = deque()
        # The streams of running calls, each with the items that wait for its call to end.
        self._behind: dict[Stream, list[_Item]] = {}
        # Of items in the queue and behind a stream.
        self._waiting = 0
        # Of waiting items and of those in running calls.
        self._bytes = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._slow_calls = 0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """The number of intents whose call has not started."""
        return self._waiting

    async def enqueue(self, new: NewIntent, *, size: int = 0) -> Enqueued:
        """Enqueue one intent, together with whatever else is waiting.

        It is committed when this returns. `size` is its share of `bytes_max`; the result's
        `ordinal` is its position in the call. Raises IntakeFull if too much is waiting. After
        DatabaseUnavailable the outcome is unknown: retry with the same idempotency key.
        """
        self._require_room(1, size)
        result = await self._add(new, size).result
        if isinstance(result, Enqueued):
            return result
        if isinstance(result, DatabaseUnavailable):
            # Each caller gets its own exception: a traceback grows whenever one is raised.
            raise DatabaseUnavailable(str(result), reason=result.reason) from result
        raise result

    async def enqueue_many(
        self, intents: Sequence[NewIntent], *, size: int = 0
    ) -> list[Enqueued | Exception]:
        """Enqueue several intents of one caller. Returns a result or an exception for each.

        Raises IntakeFull if there is no room for all of them; then none was taken.
        """
        self._require_room(len(intents), size)
        size_each = size // max(1, len(intents))
        items = [self._add(new, size_each) for new in intents]
        return [await item.result for item in items]

    async def close(self) -> None:
        """Accept no more intents, and wait until all callers have their results."""
        self._is_closed = True
        ends_at = asyncio.get_running_loop().time() + _CLOSE_SECONDS
        while self._calls:
            left = ends_at - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(self._calls, timeout=max(0.0, left))
            if not done:
                break
        for call in self._calls:
            call.cancel()
        for item in (*self._queue, *chain(*self._behind.values())):
            item.finish(IntakeFull(_STOPPING))
        self._queue.clear()
        if self._notifications is not None:
            await self._notifications.close()

    def _require_room(self, intents: int, size: int) -> None:
        if self._is_closed:
            raise IntakeFull(_STOPPING)
        if self._waiting + intents > self._waiting_max:
            raise IntakeFull(f"{self._waiting} intents are waiting already: try again later")
        if self._bytes + size > self._bytes_max:
            raise IntakeFull(f"{self._bytes} bytes are waiting already: try again later")

    def _add(self, new: NewIntent, size: int) -> _Item:
        loop = asyncio.get_running_loop()
        stream = None if new.stream is None else (new.target, new.stream)
        item = _Item(new, stream, size, loop.time(), loop.create_future())
        self._behind.get(stream, self._queue).append(item)
        self._waiting += 1
        self._bytes += size
        self._start_call()
        return item

    def _start_call(self) -> None:
        """Start a call, unless one is running that will end soon."""
        if self._queue and len(self._calls) == self._slow_calls < CALLS_MAX:
            # The task takes its batch when it first runs, with everything that arrived until then.
            call = asyncio.create_task(self._call())
            self._calls.add(call)
            call.add_done_callback(self._end_call)

    def _end_call(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start_call()

    async def _call(self) -> None:
        batch = self._take_batch()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        is_slow = False

        def mark_slow() -> None:
            nonlocal is_slow
            is_slow = True
            self._slow_calls += 1
            self._start_call()

        timer = loop.call_later(self._slow_seconds, mark_slow)
        try:
            await self._commit(batch)
        finally:
            timer.cancel()
            self._slow_calls -= is_slow
            self._release(batch)
        if self._observe is not None and batch:
            self._observe(len(batch), loop.time() - started_at)

    def _take_batch(self) -> list[_Item]:
        """Take the items of the next call, and reserve their streams for it."""
        batch: list[_Item] = []
        streams: dict[Stream, list[_Item]] = {}
        size = 0
        while self._queue and len(batch) < self._batch_max and size < BATCH_BYTES_MAX:
            item = self._queue.popleft()
            if item.result.done():  # its caller is gone
                self._waiting -= 1
                self._bytes -= item.size
            elif item.stream in self._behind:
                self._behind[item.stream].append(item)
            else:
                batch.append(item)
                size += item.size
                if item.stream is not None:
                    streams[item.stream] = []
        self._waiting -= len(batch)
        self._behind |= streams
        return batch

    def _release(self, batch: Sequence[_Item]) -> None:
        """Return the room and the streams of a call that ended."""
        for item in batch:
            self._bytes -= item.size
            # Has an effect only if the call was cancelled.
            item.finish(DatabaseUnavailable("this instance stopped before the database answered"))
        for stream in {item.stream for item in batch}:
            self._queue.extendleft(reversed(self._behind.pop(stream, ())))

    async def _commit(self, batch: Sequence[_Item]) -> None:
        """Enqueue a batch and finish its items; part by part if it fails because of one of them."""
        batch = [item for item in batch if not item.result.done()]
        if not batch:
            return
        try:
            results = await self._store.enqueue_intents([item.new for item in batch])
        except Exception as error:  # noqa: BLE001 (whatever it is, the callers get it)
            await self._commit_parts(batch, error)
            return
        for item, result in zip(batch, results, strict=True):
            item.finish(result)
        if self._notifications is not None:
            targets = due_targets((item.new for item in batch), results)
            self._notifications.add(targets, len(batch))

    async def _commit_parts(self, batch: Sequence[_Item], error: Exception) -> None:
        parts = _split(batch, error)
        if not parts:
            result = _INVALID if isinstance(error, INVALID_VALUE) else error
            for item in batch:
                item.finish(result)
            return
        # The text of the error may quote a value of one of them.
        kind = type(error).__name__
        _log.info("batch_split", intents=len(batch), parts=len(parts), error=kind)
        for part in parts:
            oldest = asyncio.get_running_loop().time() - RETRY_SECONDS_MAX
            for item in part:
                if item.queued_at < oldest:
                    item.finish(error)
            await self._commit(part)


def _split(batch: Sequence[_Item], error: Exception) -> list[Sequence[_Item]]:
    """Split a batch that wrote nothing; empty if trying its parts would not help."""
    is_locked = isinstance(error, DatabaseUnavailable) and error.reason is Unavailable.LOCKED
    if len(batch) == 1 or not (is_locked or isinstance(error, INVALID_VALUE)):
        return []
    if is_locked:
        # What is locked for long are streams, each by an open transaction of somebody.
        by_stream: dict[Stream, list[_Item]] = {}
        for item in batch:
            by_stream.setdefault(item.stream, []).append(item)
        if len(by_stream) > 1:
            return list(by_stream.values())
        if None not in by_stream:
            return []
    half = len(batch) // 2
    return [batch[:half], batch[half:]]
