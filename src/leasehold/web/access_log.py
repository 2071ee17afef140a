"""One line for every request: what it was, what became of it, how long it took, whose it was.

No query, no header and no body is in it, so no secret and no payload is. It has the form of all
other lines, but does not go their way through structlog and the standard library: that takes longer
than all the rest of a request. Lines are collected for a moment and written together.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, NamedTuple, TextIO

from structlog.dev import ConsoleRenderer

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.observe.logs import Format

FLUSH_SECONDS = 0.05
_LEVELS = ("debug", "info")


class Answered(NamedTuple):
    """What a line says."""

    method: str
    path: str
    status: int
    milliseconds: float
    request_id: str
    token: str
    client: str


class AccessLog:
    """Writes the lines; close() writes the last ones."""

    def __init__(
        self,
        format: Format = "json",  # noqa: A002 (as in observe.logs)
        level: str = "info",
        stream: TextIO | None = None,
    ) -> None:
        self._is_wanted = level in _LEVELS
        self._line: Callable[[Answered], str] = _json if format == "json" else _Console()
        self._stream = stream or sys.stderr
        self._lines: list[str] = []

    def write(self, answered: Answered) -> None:
        """Write the line of one request."""
        if not self._is_wanted:
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.close)
        self._lines.append(self._line(answered))

    def close(self) -> None:
        """Write what is left."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def _json(answered: Answered) -> str:
    method, path, status, milliseconds, request_id, token, client = answered
    return (
        f'{{"timestamp": "{datetime.now(UTC).isoformat()}", "level": "info", "event": "request", '
        f'"method": {quoted(method)}, "path": {quoted(path)}, "status": {status}, '
        f'"milliseconds": {milliseconds:.2f}, "request_id": {quoted(request_id)}, '
        f'"token": {quoted(token)}, "client": {quoted(client)}}}'
    )


class _Console:
    """The same for people."""

    def __init__(self) -> None:
        self._render = ConsoleRenderer(colors=False)

    def __call__(self, answered: Answered) -> str:
        fields = answered._asdict() | {"milliseconds": round(answered.milliseconds, 2)}
        head = {"timestamp": datetime.now(UTC).isoformat(), "level": "info", "event": "request"}
        return str(self._render(None, "info", head | fields))
