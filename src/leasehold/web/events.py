"""The ledger as a stream of events: one reader for all who listen, and nobody misses one.

Everybody who listens has a place in the order of events. The reader goes ahead of all and hands
each event to everybody, into a buffer that is bounded. Whoever is behind the reader (it resumes, or
was too slow and its buffer ran over) reads from the database by itself until it has caught up.

So a listener costs a bounded amount of memory, a slow one hurts nobody, and the same place can be
resumed at any instance.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause
from leasehold.store.rows import EventCursor
from leasehold.web.problems import RETRY_SECONDS, Problem
from leasehold.web.schemas.responses import Attempt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence

    from leasehold.store.protocol import ReaderStore
    from leasehold.store.rows import LedgerEvent

PAGE = 500
BUFFER_MAX = 1000
LISTENERS_MAX = 200
READERS_MAX = 2
LOOK_SECONDS = 0.2
HEARTBEAT_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_PIECE_BYTES = 64 * 1024

_LOG = get_logger(__name__)


class Written(NamedTuple):
    """An event as it is sent; written once, whoever it goes to."""

    cursor: EventCursor
    target: str | None
    block: bytes


class Listener:
    """Somebody who listens: what is ready for it, and whether it fell behind."""

    def __init__(self, joined_at: EventCursor) -> None:
        self.joined_at = joined_at
        self.ready: deque[Written] = deque()
        self.is_behind = False
        self.news = asyncio.Event()

    def offer(self, events: Sequence[Written]) -> None:
        """Take events, or fall behind."""
        if not self.is_behind and len(self.ready) + len(events) > BUFFER_MAX:
            self.is_behind = True
            self.ready.clear()
        if not self.is_behind:
            self.ready.extend(events)
        self.news.set()


class Events:
    """The service that reads for all who listen."""

    name = "events"

    def __init__(self, store: ReaderStore) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._listeners: set[Listener] = set()
        self._seats = 0
        self._place: EventCursor | None = None
        self._joining = asyncio.Lock()
        self._reading = asyncio.Semaphore(READERS_MAX)
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    async def step(self) -> Pause:
        """Read on, and hand out what came."""
        if self._place is None:
            return Pause(_IDLE_SECONDS)
        events = await self._store.read_events(self._place, PAGE)
        if not self._listeners:
            self._place = None
            return AGAIN
        if events:
            written = [_written(event) for event in events]
            self._place = written[-1].cursor
            for listener in self._listeners:
                listener.offer(written)
        return AGAIN if len(events) == PAGE else Pause(LOOK_SECONDS)

    def close(self) -> None:
        """End every stream: whoever listens goes on at another instance."""
        self._is_closed = True
        for listener in self._listeners:
            listener.news.set()

    def take_seat(self) -> None:
        """Let one more listen, or refuse; whoever has a seat leaves it, whatever happens."""
        if self._is_closed:
            raise Problem(
                "overloaded",
                "this instance is going: listen to another one",
                retry_seconds=RETRY_SECONDS,
            )
        if self._seats >= LISTENERS_MAX:
            raise Problem(
                "overloaded", "too many listen to events already", retry_seconds=10 * RETRY_SECONDS
            )
        self._seats += 1

    def leave_seat(self) -> None:
        """Make room for another."""
        self._seats -= 1

    async def place(self, text: str | None) -> EventCursor:
        """Read a place, and refuse one that is none in this database; None: what is to come."""
        if text is None:
            return await self._store.newest_event()
        place = EventCursor.parse(text)
        await self._store.read_events(place, 1)
        return place

    async def stream(
        self,
        after: EventCursor,
        targets: Collection[str] | None,
        is_allowed: Callable[[], bool],
    ) -> AsyncGenerator[bytes]:
        """Give everything after a place, of some targets or all, for as long as somebody reads and
        may do so: who may no more gets nothing more, not even a sign of life.
        """
        async with aclosing(self._pieces(after, targets)) as pieces:
            async for piece in pieces:
                if not is_allowed():
                    return
                yield piece

    async def _pieces(
        self, after: EventCursor, targets: Collection[str] | None
    ) -> AsyncGenerator[bytes]:
        # The place to resume from, also for whoever is cut off before the first event.
        opening = f"retry: {1000 * RETRY_SECONDS}\nid: {after}\n\n".encode()
        try:
            while not self._is_closed:
                with self._listening(await self._joined()) as listener:
                    yield opening
                    opening = b""
                    async for piece, reached in self._behind(after, listener.joined_at, targets):
                        after = reached
                        yield piece
                    async for piece, reached in self._live(after, listener, targets):
                        after = reached
                        yield piece
        except LeaseholdError as error:
            # Whoever listens comes again, here or at another instance, and misses nothing.
            _LOG.warning("stream_ended", error=str(error))

    async def _joined(self) -> EventCursor:
        """Give the place that the reader is at, and have it read."""
        async with self._joining:
            if self._place is None:
                self._place = await self._store.newest_event()
                self.wake.set()
            return self._place

    @contextmanager
    def _listening(self, joined_at: EventCursor) -> Generator[Listener]:
        listener = Listener(self._place or joined_at)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _behind(
        self, after: EventCursor, until: EventCursor, targets: Collection[str] | None
    ) -> AsyncGenerator[tuple[bytes, EventCursor]]:
        while after < until and not self._is_closed:
            async with self._reading:
                events = await self._store.read_events(after, PAGE)
            found = [_written(event) for event in events if event.cursor <= until]
            after = found[-1].cursor if len(found) == PAGE else until
            yield _piece(found, targets, after), after

    async def _live(
        self, after: EventCursor, listener: Listener, targets: Collection[str] | None
    ) -> AsyncGenerator[tuple[bytes, EventCursor]]:
        while not self._is_closed and not listener.is_behind:
            if not listener.ready:
                listener.news.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await listener.news.wait()
                except TimeoutError:
                    yield f": still here\nid: {after}\n\n".encode(), after
                continue
            found, size = list[Written](), 0
            while listener.ready and size < _PIECE_BYTES:
                found.append(listener.ready.popleft())
                size += len(found[-1].block)
            # What is not newer was read already, while this listener caught up.
            found = [event for event in found if event.cursor > after]
            after = found[-1].cursor if found else after
            piece = _piece(found, targets, after)
            if piece:
                yield piece, after


def _piece(
    events: Sequence[Written], targets: Collection[str] | None, reached: EventCursor
) -> bytes:
    wanted = [
        event.block
        for event in events
        if targets is None or (event.target is not None and event.target in targets)
    ]
    if events and not wanted:
        # Nothing of theirs, but what was looked at need not be looked at again.
        return f"id: {reached}\n\n".encode()
    return b"".join(wanted)


def _written(event: LedgerEvent) -> Written:
    attempt = Attempt.model_validate(event.attempt).model_dump(mode="json")
    data = json.dumps({"target": event.target, **attempt}, separators=(",", ":"))
    block = f"id: {event.cursor}\nevent: attempt\ndata: {data}\n\n".encode()
    return Written(event.cursor, event.target, block)
