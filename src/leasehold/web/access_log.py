"""The access log: one line per request. It contains no query, header or body, hence no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leasehold.observe.logs import BufferedLog

if TYPE_CHECKING:
    from typing import TextIO

    from leasehold.observe.logs import Format


class Answered(NamedTuple):
    """The fields of a line."""

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
        self._log = BufferedLog(format, level, stream)

    def write(self, answered: Answered) -> None:
        """Write the line of one request."""
        method, path, status, milliseconds, request_id, token, client = answered
        self._log.info(
            "request",
            method=method,
            path=path,
            status=status,
            milliseconds=round(milliseconds, 2),
            request_id=request_id,
            token=token,
            client=client,
        )

    def close(self) -> None:
        """Write the last lines."""
        self._log.flush()
