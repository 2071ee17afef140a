"""Reading a body: bounded in bytes, also where its length was not told; all together too.

How long a body may take is for `protocol` to say: it knows when the bytes come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import IntakeFull
from leasehold.web.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.web.headers import Headers

    Receive = Callable[[], Awaitable[Any]]

# 1 MiB of payload, also where it is bytes in base64, and what is said beside it.
BODY_BYTES_MAX = 1024 * 1024 * 4 // 3 + 64 * 1024
BATCH_BYTES_MAX = 8 * 1024 * 1024
SMALL_BODY_BYTES_MAX = 64 * 1024
ALL_BYTES_MAX = 64 * 1024 * 1024


class ClientGone(Exception):
    """The client hung up before its request was whole: there is nobody to answer."""


class Bodies:
    """All bodies that are being read."""

    def __init__(self, bytes_max: int = ALL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0

    async def read(self, receive: Receive, headers: Headers, bytes_max: int) -> bytes:
        """Read a body that may have up to so many bytes."""
        length = headers.one(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > bytes_max):
            raise _too_large(bytes_max)
        pieces: list[bytes] = []
        held = 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGone
                piece: bytes = message.get("body", b"")
                held += len(piece)
                self._bytes += len(piece)
                if held > bytes_max:
                    raise _too_large(bytes_max)
                if not message.get("more_body", False):
                    # Mostly all of it has come together with the head.
                    return b"".join((*pieces, piece)) if pieces else piece
                if self._bytes > self._bytes_max:
                    raise IntakeFull("too many large bodies at once: try again in a moment")
                pieces.append(piece)
        finally:
            self._bytes -= held


def _too_large(bytes_max: int) -> Problem:
    return Problem("too_large", f"a body may have {bytes_max} bytes at most")
