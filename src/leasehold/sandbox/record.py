"""The append-only record of everything that the sandbox received."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Entry(NamedTuple):
    """One request. `answer` is its status; None: the connection was closed without one."""

    number: int
    received_at: float
    gateway: str
    kind: str
    key: str
    fence: int | None
    attempt: int | None
    answer: int | None
    had_effect: bool
    remark: str

    def as_json(self) -> dict[str, Any]:
        """Give it as it is queried and written to the file."""
        return self._asdict()


class RecordFull(Exception):
    """The record has reached its limit; an entry that is not written must not have an effect."""


class Record:
    """In memory and bounded; also appended to a file as JSON lines where one is given."""

    def __init__(self, entries_max: int, path: Path | None = None) -> None:
        self.entries_max = entries_max
        self._entries: list[Entry] = []
        self._file = None if path is None else _open(path)

    def require_room(self, entries: int = 1) -> None:
        """Raise RecordFull unless this many entries can still be appended."""
        if len(self._entries) + entries > self.entries_max:
            raise RecordFull

    def append(
        self,
        *,
        received_at: float,
        gateway: str,
        kind: str,
        key: str,
        fence: int | None,
        attempt: int | None,
        answer: int | None,
        had_effect: bool,
        remark: str,
    ) -> None:
        """Append one entry."""
        self.require_room()
        number = len(self._entries) + 1
        entry = Entry(
            number, received_at, gateway, kind, key, fence, attempt, answer, had_effect, remark
        )
        self._entries.append(entry)
        if self._file is not None:
            self._file.write(json.dumps(entry.as_json()) + "\n")

    def after(self, number: int, limit: int) -> Sequence[Entry]:
        """Give the entries that follow an entry's number."""
        return self._entries[max(0, number) : max(0, number) + limit]

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _open(path: Path) -> TextIO:
    try:
        # Line by line, so that a reader of the file sees what was answered.
        return path.open("a", buffering=1, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"cannot write the record to {path}: {error.strerror}") from error
