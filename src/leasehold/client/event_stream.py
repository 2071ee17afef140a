"""Server-sent events: bytes into events, and the place to resume from when the stream ends.

Lines are split in bytes, at CR and LF only: a JSON text may have other characters that Python takes
for the end of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.client import responses as answers
from leasehold.client.errors import Refusal
from leasehold.client.requests import Call
from leasehold.client.retry import Patience
from leasehold.domain.errors import ApiError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from leasehold.store.rows import EventCursor, LedgerEvent

# An attempt is a few kilobytes.
BLOCK_BYTES_MAX = 1024 * 1024
# Somebody says something at least every ten seconds.
SILENCE_SECONDS = 30.0
_PAUSE_SECONDS_MAX = 60.0
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two empty lines; `data` is None where only the place moved on."""

    cursor: str | None
    data: str | None


class Parser:
    """Takes bytes as they come, and gives the blocks that are whole."""

    def __init__(self) -> None:
        self.retry_seconds: float | None = None
        self._rest = b""
        self._after_cr = False
        self._cursor: str | None = None
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Block]:
        """Give the blocks that end in this piece."""
        if not piece:
            return
        # CR LF is one end of a line, also where a piece ends between the two.
        ends_with_cr = piece.endswith(b"\r")
        if self._after_cr:
            piece = piece.removeprefix(b"\n")
        self._after_cr = ends_with_cr
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        for line in lines:
            block = self._take(line)
            if block is not None:
                yield block
        if self._size + len(self._rest) > BLOCK_BYTES_MAX:
            raise ApiError(f"an event of more than {BLOCK_BYTES_MAX} bytes is none of ours")

    def _take(self, line: bytes) -> Block | None:
        if not line:
            return self._end()
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
                pass  # a comment, the kind of event (there is one), or what we do not know yet
        return None

    def _end(self) -> Block | None:
        cursor, data, self._cursor, self._data, self._size = self._cursor, self._data, None, [], 0
        if cursor is None and not data:
            return None
        return Block(cursor, "\n".join(data) if data else None)


class Following:
    """One who follows the events: where it is, and what to do when it is cut off."""

    def __init__(
        self, after: EventCursor | None, target: str | None, patience_seconds: float
    ) -> None:
        self.patience = Patience(patience_seconds)
        self._cursor = None if after is None else str(after)
        self._query = {} if target is None else {"target": target}
        self._parser = Parser()
        self._asked_seconds: float | None = None

    def call(self) -> Call[None]:
        """Ask for all that follows the last event that was given away."""
        self._parser = Parser()
        headers = {"Accept": "text/event-stream"}
        if self._cursor is not None:
            headers["Last-Event-ID"] = self._cursor
        return Call(
            method="GET",
            path="/v1/events",
            query=self._query,
            headers=headers,
            read=_nothing,
            is_repeatable=True,
            wait_seconds=SILENCE_SECONDS,
        )

    def events(self, piece: bytes) -> Iterator[LedgerEvent]:
        """Give the events that end in a piece of the stream. Each counts as seen when the next one
        is asked for: whoever breaks off in between sees it again, rather than never.
        """
        for block in self._parser.feed(piece):
            self.patience.renew()
            self._asked_seconds = self._parser.retry_seconds
            if block.data is not None:
                yield _event(block)
            if block.cursor is not None:
                self._cursor = block.cursor

    def pause(self) -> float:
        """Give the pause before the stream, which ended, is asked for again."""
        # A stream that ends is nothing unusual: its instance stops, and another one goes on.
        pause = self.patience.pause(self._asked_seconds)
        if pause is None:
            raise ApiError("the stream of events ends again and again without an event")
        return pause


def _event(block: Block) -> LedgerEvent:
    try:
        return answers.event(block.cursor or "", block.data or "")
    except (InvalidArgument, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ApiError("the API sent an event that this release cannot read") from error


def _nothing(response: httpx.Response) -> None:
    if not response.is_success:
        raise Refusal.of(response).error()
