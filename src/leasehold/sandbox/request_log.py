"""The append-only log of every request that the sandbox received."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class LoggedRequest(NamedTuple):
    """One request, or one batch of it. `status` is None if the connection was closed instead."""

    number: int
    received_at: float
    gateway: str
    kind: str
    key: str
    status: int | None
    fencing_token: int | None = None
    attempt_no: int | None = None
    had_effect: bool = False
    remark: str = ""
    stream: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as GET /requests and the file show it."""
        return self._asdict()


class RequestLogFull(Exception):
    """The log has reached its limit. A request that cannot be logged must not have an effect."""


class RequestLog:
    """Kept in memory up to a limit, and appended to a file as JSON lines if a path is given."""

    def __init__(self, requests_max: int, path: Path | None = None) -> None:
        self.requests_max = requests_max
        self._requests: list[LoggedRequest] = []
        self._file = None if path is None else _open(path)

    def require_room(self, requests: int = 1) -> None:
        """Raise RequestLogFull unless this many requests can still be logged."""
        if len(self._requests) + requests > self.requests_max:
            raise RequestLogFull

    def append(self, logged: LoggedRequest) -> None:
        """Log one request."""
        self.require_room()
        self._requests.append(logged)
        if self._file is not None:
            self._file.write(json.dumps(logged.as_json()) + "\n")

    def after(self, number: int, limit: int) -> Sequence[LoggedRequest]:
        """Return the requests after a request's number."""
        return self._requests[max(0, number) : max(0, number) + limit]

    def accepted(self) -> dict[str, list[str]]:
        """Return by stream the keys that had an effect, in the order of their effects."""
        keys: dict[str, list[str]] = {}
        for one in self._requests:
            if one.had_effect and one.stream:
                keys.setdefault(one.stream, []).append(one.key)
        return keys

    def __len__(self) -> int:
        return len(self._requests)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _open(path: Path) -> TextIO:
    try:
        # Line-buffered, so that a reader of the file sees every request that was answered.
        return path.open("a", buffering=1, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"cannot write requests to {path}: {error.strerror}") from error
