"""The ledger as a stream of server-sent events: one reader for all listeners, and none misses one.

Each listener has a cursor in the order of events. The reader is ahead of all of them and puts each
event into every listener's bounded buffer. A listener that is behind the reader (it resumes, or its
buffer overflowed) reads from the database itself until it has caught up.

So a listener costs bounded memory, a slow one affects no other, and a stream can be resumed at any
instance.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from leasehold.domain.errors import InvalidArgument, LeaseholdError
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause
from leasehold.store.reader_rows import EventCursor
from leasehold.web.problems import RETRY_SECONDS, Fault, Problem, invalid
from leasehold.web.schemas.responses import Attempt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence

    from leasehold.store.reader_protocol import EventStore
    from leasehold.store.reader_rows import LedgerEvent

PAGE = 500
BUFFER_MAX = 1000
LISTENERS_MAX = 200
CATCHING_UP_MAX = 2
POLL_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_CHUNK_BYTES = 64 * 1024

# Also after a restore, because a restored database counts its transactions anew.
_BAD_CURSOR = Fault(
    "last_event_id", "must be the id of an event of this database; start without one"
)

_LOG = get_logger(__name__)


class EncodedEvent(NamedTuple):
    """An event as it is sent; encoded once for all listeners."""

    cursor: EventCursor
    target: str | None
    block: bytes


class Listener:
    """A listener's buffer, and whether it overflowed."""

    def __init__(self, joined_at: EventCursor) -> None:
        self.joined_at = joined_at
        self.buffer: deque[EncodedEvent] = deque()
        self.is_behind = False
        self.news = asyncio.Event()

    def offer(self, events: Sequence[EncodedEvent]) -> None:
        """Buffer events, or fall behind."""
        if not self.is_behind and len(self.buffer) + len(events) > BUFFER_MAX:
            self.is_behind = True
            self.buffer.clear()
        if not self.is_behind:
            self.buffer.extend(events)
        self.news.set()


class Events:
    """The service that reads the ledger for all listeners."""

    name = "events"

    def __init__(self, store: EventStore) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._listeners: set[Listener] = set()
        self._admitted = 0
        self._cursor: EventCursor | None = None
        self._joining = asyncio.Lock()
        self._catching_up = asyncio.Semaphore(CATCHING_UP_MAX)
        self._is_closed = False

    @property
    def listeners(self) -> int:
        """How many clients listen."""
        return len(self._listeners)

    async def step(self) -> Pause:
        """Read the next events, and give them to all listeners."""
        if self._cursor is None:
            return Pause(_IDLE_SECONDS)
        events = await self._store.read_events(self._cursor, PAGE)
        if not self._listeners:
            self._cursor = None
            return AGAIN
        if events:
            encoded = [_encode(event) for event in events]
            self._cursor = encoded[-1].cursor
            for listener in self._listeners:
                listener.offer(encoded)
        return AGAIN if len(events) == PAGE else Pause(POLL_SECONDS)

    def close(self) -> None:
        """End every stream; the clients resume at another instance."""
        self._is_closed = True
        for listener in self._listeners:
            listener.news.set()

    def admit(self) -> None:
        """Admit one more listener, or refuse it. Call release() when it has ended."""
        if self._is_closed:
            raise Problem(
                "overloaded",
                "This instance is stopping. Connect to another one.",
                retry_seconds=RETRY_SECONDS,
            )
        if self._admitted >= LISTENERS_MAX:
            raise Problem(
                "overloaded",
                f"This instance has {LISTENERS_MAX} listeners already.",
                retry_seconds=10 * RETRY_SECONDS,
            )
        self._admitted += 1

    def release(self) -> None:
        """Make room for another listener."""
        self._admitted -= 1

    async def cursor(self, text: str | None) -> EventCursor:
        """Parse a cursor, and refuse one that this database cannot read; None means from now on."""
        if text is None:
            return await self._store.newest_event()
        cursor = EventCursor(text)
        try:
            await self._store.read_events(cursor, 1)
        except InvalidArgument:
            raise invalid([_BAD_CURSOR]) from None
        return cursor

    async def stream(
        self, after: EventCursor, targets: Collection[str] | None, is_allowed: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        """Yield everything after a cursor, of some targets or all, while `is_allowed` holds.

        It is asked before each chunk, so a revoked token gets nothing more, not even a comment.
        """
        async with aclosing(self._chunks(after, targets)) as chunks:
            async for chunk in chunks:
                if not is_allowed():
                    return
                yield chunk

    async def _chunks(
        self, after: EventCursor, targets: Collection[str] | None
    ) -> AsyncGenerator[bytes]:
        # With the cursor to resume from, in case the client is cut off before the first event.
        opening = f"retry: {1000 * RETRY_SECONDS}\nid: {after}\n\n".encode()
        try:
            while not self._is_closed:
                with self._listening(await self._join()) as listener:
                    yield opening
                    opening = b""
                    async for chunk, reached in self._catch_up(after, listener.joined_at, targets):
                        after = reached
                        yield chunk
                    async for chunk, reached in self._follow(after, listener, targets):
                        after = reached
                        yield chunk
        except LeaseholdError as error:
            # The client resumes, here or at another instance, and misses nothing.
            _LOG.warning("event_stream_ended", error=str(error))

    async def _join(self) -> EventCursor:
        """Return the reader's cursor; starts the reader if it is idle."""
        async with self._joining:
            if self._cursor is None:
                self._cursor = await self._store.newest_event()
                self.wake.set()
            return self._cursor

    @contextmanager
    def _listening(self, joined_at: EventCursor) -> Generator[Listener]:
        listener = Listener(self._cursor or joined_at)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _catch_up(
        self, after: EventCursor, until: EventCursor, targets: Collection[str] | None
    ) -> AsyncGenerator[tuple[bytes, EventCursor]]:
        while after < until and not self._is_closed:
            async with self._catching_up:
                events = await self._store.read_events(after, PAGE)
            found = [_encode(event) for event in events if event.cursor <= until]
            after = found[-1].cursor if len(found) == PAGE else until
            yield _chunk(found, targets, after), after

    async def _follow(
        self, after: EventCursor, listener: Listener, targets: Collection[str] | None
    ) -> AsyncGenerator[tuple[bytes, EventCursor]]:
        while not self._is_closed and not listener.is_behind:
            if not listener.buffer:
                listener.news.clear()
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await listener.news.wait()
                except TimeoutError:
                    yield f": keep-alive\nid: {after}\n\n".encode(), after
                continue
            found, size = list[EncodedEvent](), 0
            while listener.buffer and size < _CHUNK_BYTES:
                found.append(listener.buffer.popleft())
                size += len(found[-1].block)
            # Older events were sent while the listener caught up.
            found = [event for event in found if event.cursor > after]
            after = found[-1].cursor if found else after
            chunk = _chunk(found, targets, after)
            if chunk:
                yield chunk, after


def _chunk(
    events: Sequence[EncodedEvent], targets: Collection[str] | None, reached: EventCursor
) -> bytes:
    wanted = [
        event.block
        for event in events
        if targets is None or (event.target is not None and event.target in targets)
    ]
    if events and not wanted:
        # Nothing for this listener, but it need not read these again.
        return f"id: {reached}\n\n".encode()
    return b"".join(wanted)


def _encode(event: LedgerEvent) -> EncodedEvent:
    attempt = Attempt.model_validate(event.attempt).model_dump(mode="json")
    data = json.dumps({"target": event.target, **attempt}, separators=(",", ":"))
    block = f"id: {event.cursor}\nevent: attempt\ndata: {data}\n\n".encode()
    return EncodedEvent(event.cursor, event.target, block)
