"""Server-sent events: parses bytes into events and knows where to resume when the stream ends.

Lines end at CR and LF only, so they are split as bytes: JSON may contain other characters that
str.splitlines takes for the end of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.client import responses
from leasehold.client.errors import ErrorResponse
from leasehold.client.requests import Request
from leasehold.client.retry import RetryBudget
from leasehold.domain.errors import ApiError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from leasehold.store.reader_rows import LedgerEvent

# An attempt has a few kilobytes.
BLOCK_BYTES_MAX = 1024 * 1024
# An instance sends something at least every ten seconds.
SILENCE_SECONDS = 30.0
_PAUSE_SECONDS_MAX = 60.0
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Block:
    """The lines between two empty ones; `data` is None if only the cursor moved."""

    cursor: str | None
    data: str | None


class Parser:
    """Takes bytes as they arrive and returns complete blocks."""

    def __init__(self) -> None:
        self.retry_seconds: float | None = None
        self._rest = b""
        self._after_cr = False
        self._cursor: str | None = None
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Block]:
        """Yield the blocks that end in this chunk."""
        if not chunk:
            return
        # CR LF is one line end, also if a chunk ends between the two.
        ends_with_cr = chunk.endswith(b"\r")
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = ends_with_cr
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        for line in lines:
            block = self._take(line)
            if block is not None:
                yield block
        if self._size + len(self._rest) > BLOCK_BYTES_MAX:
            raise ApiError(f"the API sent an event of more than {BLOCK_BYTES_MAX} bytes")

    def _take(self, line: bytes) -> Block | None:
        if not line:
            return self._end_block()
        self._size += len(line)
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._cursor = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry_seconds = min(int(value[:9]) / 1000, _PAUSE_SECONDS_MAX)
            case _:
                pass  # a comment, the event type (there is only one), or an unknown field
        return None

    def _end_block(self) -> Block | None:
        cursor, data, self._cursor, self._data, self._size = self._cursor, self._data, None, [], 0
        if cursor is None and not data:
            return None
        return Block(cursor, "\n".join(data) if data else None)


class EventStream:
    """The state of one `events` call: its cursor, and what to do when the connection ends."""

    def __init__(self, after: str | None, target: str | None, retry_seconds: float) -> None:
        self.budget = RetryBudget(retry_seconds)
        self._cursor = after
        self._query = {} if target is None else {"target": target}
        self._parser = Parser()
        self._requested_seconds: float | None = None

    def request(self) -> Request[None]:
        """Ask for everything after the last event that the caller is done with."""
        self._parser = Parser()
        headers = {"Accept": "text/event-stream"}
        if self._cursor is not None:
            headers["Last-Event-ID"] = self._cursor
        return Request(
            method="GET",
            path="/v1/events",
            query=self._query,
            headers=headers,
            read=_raise_error,
            is_idempotent=True,
        )

    def events(self, chunk: bytes) -> Iterator[LedgerEvent]:
        """Yield the events that end in this chunk.

        An event counts as done when the next one is asked for. After an interruption in between
        it is delivered again rather than lost.
        """
        for block in self._parser.feed(chunk):
            self.budget.reset()
            self._requested_seconds = self._parser.retry_seconds
            if block.data is not None:
                yield _event(block)
            if block.cursor is not None:
                self._cursor = block.cursor

    def pause(self) -> float:
        """Return the pause before the next request, after a stream that ended normally.

        That is not an error: its instance stops, and another one continues.
        """
        pause = self.budget.pause(self._requested_seconds)
        if pause is None:
            raise ApiError("the event stream ended repeatedly without sending an event")
        return pause


def _event(block: Block) -> LedgerEvent:
    try:
        return responses.event(block.cursor or "", block.data or "")
    except (InvalidArgument, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ApiError("this release cannot read an event that the API sent") from error


def _raise_error(response: httpx.Response) -> None:
    if not response.is_success:
        raise ErrorResponse.of(response).exception()
