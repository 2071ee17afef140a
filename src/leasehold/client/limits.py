"""The limits of a call: how long each try may take in all, and how large a response may be.

httpx and httpcore know a timeout for each read and each write, so a server that sends a byte now
and then can keep a request going for ever. They pass a timeout on to the network without looking at
it. So the client gives them a moment (`EndsAt`), and its network (see async_transport) waits until
then.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import httpx

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS = 5.0
# Longer than an instance waits for its database before it answers 503.
RESPONSE_SECONDS = 20.0
RESPONSE_SECONDS_MIN = 0.1
# A page of 200 intents, each with the longest texts that the ledger keeps, is smaller.
RESPONSE_BYTES_MAX = 32 * 1024 * 1024

# Why a response was not read, among its extensions.
UNREAD = "leasehold_unread"
_TOO_LARGE = "it has more than {} bytes"


class EndsAt(float):
    """A moment on the monotonic clock; no single wait takes longer than `wait_seconds_max`."""

    __slots__ = ("wait_seconds_max",)
    wait_seconds_max: float

    @classmethod
    def after(cls, seconds: float, wait_seconds_max: float) -> EndsAt:
        """Return the moment `seconds` from now."""
        ends_at = cls(time.monotonic() + seconds)
        ends_at.wait_seconds_max = wait_seconds_max
        return ends_at


def remaining_seconds(timeout: float | None, over: Callable[[str], Exception]) -> float | None:
    """Return for how long to wait now; raise `over` if the moment has passed."""
    if not isinstance(timeout, EndsAt):
        return timeout
    seconds = min(timeout - time.monotonic(), timeout.wait_seconds_max)
    if seconds <= 0:
        raise over("the response took too long")
    return seconds


def checked_seconds(name: str, seconds: float, *, seconds_min: float = 0.0) -> float:
    """Return a time limit, or raise if it is none."""
    if not (math.isfinite(seconds) and seconds >= seconds_min):
        raise InvalidArgument(
            f"{name} is {seconds:g}; use a number of seconds from {seconds_min:g}"
        )
    return seconds


def try_timeouts(seconds: float) -> httpx.Timeout:
    """Return the timeouts of a try that may take `seconds` in all."""
    ends_at = EndsAt.after(seconds, wait_seconds_max=seconds)
    connect = EndsAt.after(seconds, wait_seconds_max=min(CONNECT_SECONDS, seconds))
    return httpx.Timeout(connect=connect, read=ends_at, write=ends_at, pool=seconds)


def stream_timeouts(silence_seconds: float) -> httpx.Timeout:
    """Return the timeouts of a stream without end; it may be silent for `silence_seconds`."""
    return httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS)


class ResponseBody:
    """Collects the body of a response, up to a limit."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._bytes = bytearray()
        self._problem: str | None = None
        # The client asks for none. A few kilobytes can unpack to gigabytes.
        if response.headers.get("content-encoding", "identity") != "identity":
            self._problem = "it is compressed"
        elif _declared_bytes(response) > RESPONSE_BYTES_MAX:
            self._problem = _TOO_LARGE.format(RESPONSE_BYTES_MAX)

    def add(self, chunk: bytes) -> bool:
        """Take the next part, and return whether to read on."""
        self._bytes += chunk
        if len(self._bytes) > RESPONSE_BYTES_MAX:
            self._problem = _TOO_LARGE.format(RESPONSE_BYTES_MAX)
        return self._problem is None

    def response(self) -> httpx.Response:
        """Return the response with its body; if that was not read, without it and with why."""
        headers = self._response.headers.copy()
        headers.pop("content-encoding", None)
        kept = {"reason_phrase": self._response.extensions.get("reason_phrase", b"")}
        if self._problem is not None:
            kept[UNREAD] = self._problem.encode()
            self._bytes.clear()
        return httpx.Response(
            self._response.status_code,
            headers=headers,
            content=bytes(self._bytes),
            extensions=kept,
        )


def _declared_bytes(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0
