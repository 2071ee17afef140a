"""One request: its headers and body, and what the log will say about it."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import contextmanager
from ipaddress import ip_address
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import IntakeFull
from leasehold.observe.traces import parse_traceparent
from leasehold.web.problems import Fault, Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    Receive = Callable[[], Awaitable[Any]]

# Requests to unknown paths are counted together: every path would be a metric of its own, and
# clients choose them.
UNKNOWN_ROUTE = "unknown"
HEAD_BYTES_MAX = 32 * 1024
# 1 MiB of payload, even as bytes in base64, and the other members.
BODY_BYTES_MAX = 1024 * 1024 * 4 // 3 + 64 * 1024
BATCH_BYTES_MAX = 8 * 1024 * 1024
SMALL_BODY_BYTES_MAX = 64 * 1024
# All bodies that are being read at the same time.
BODIES_BYTES_MAX = 64 * 1024 * 1024
# Each piece of a body costs the event loop about 50 microseconds, even one of a single byte. So
# pieces after the first ones must have this size on average; those of a network have.
PIECES_MIN = 1000
PIECE_BYTES = 1024
BODY_SECONDS = 20.0
# A body usually arrives together with its head.
SLOW_BODY_SECONDS = 0.5
DRAIN_SECONDS = 2.0
DRAIN_BYTES_MAX = 16 * 1024 * 1024
_KEY_LENGTH_MAX = 255
_ENCODINGS = ("", "identity")
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_JSON = re.compile(r"application/json[ \t]*(;[ \t]*charset=\"?utf-8\"?[ \t]*)?", re.IGNORECASE)
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::\d{1,5})?", re.ASCII)
_BAD_KEY = Fault(
    "Idempotency-Key", "must be 1 to 255 printable ASCII characters; send any other key in the body"
)


class Headers:
    """The headers of one request by lower-case name; knows which names are repeated."""

    __slots__ = ("_repeated", "_values", "size")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, bytes] = {}
        self._repeated: set[bytes] = set()
        self.size = 0
        for name, value in pairs:
            self.size += len(name) + len(value)
            if name in self._values:
                self._repeated.add(name)
            else:
                self._values[name] = value

    def one(self, name: bytes) -> bytes | None:
        """Return a header that must not be repeated."""
        if self._repeated and name in self._repeated:
            raise Problem("bad_request", f"The header {name.decode()} was sent more than once.")
        return self._values.get(name)

    def first(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        return self._values.get(name)

    def require_sound(self, http_version: str, url_bytes: int) -> None:
        """Refuse a head that is too large, or that two programs could read differently.

        The second keeps a client from hiding one request inside another behind a proxy. The server
        refuses most of that itself.
        """
        if self.size + url_bytes > HEAD_BYTES_MAX:
            raise Problem(
                "headers_too_large", f"Send at most {HEAD_BYTES_MAX} bytes of URL and headers."
            )
        if (
            (self._repeated and self._repeated & _FRAMING)
            or (http_version == "1.1" and not self._values.get(b"host"))
            or (b"transfer-encoding" in self._values and not self._is_chunked(http_version))
        ):
            raise Problem(
                "bad_request",
                "Send one Host, and at most one of Content-Length and Transfer-Encoding: chunked.",
            )

    def require_json(self) -> None:
        """Refuse a body that is not plain JSON in UTF-8."""
        kind = self.one(b"content-type")
        if kind is None or (
            kind != b"application/json" and not _JSON.fullmatch(kind.decode("latin-1"))
        ):
            raise Problem("unsupported_media_type", "Send application/json, in UTF-8.")
        encoding = self.first(b"content-encoding")
        if encoding is not None and encoding.decode("latin-1").strip().lower() not in _ENCODINGS:
            raise Problem("unsupported_media_type", "Send the body without a Content-Encoding.")

    def require_loopback_host(self, http_version: str) -> None:
        """Refuse a request for another host than this machine; HTTP/1.0 needs no Host.

        Without authentication this is what keeps web pages out. A page can make its own host name
        resolve to 127.0.0.1 and have the browser send us anything, but it cannot choose the Host.
        """
        host = self.first(b"host") or b""
        if (host or http_version == "1.1") and not is_loopback_host(host.decode("latin-1")):
            raise Problem(
                "misdirected", "Without authentication, use localhost, 127.0.0.1 or [::1]."
            )

    def idempotency_key(self, faults: list[Fault]) -> str | None:
        """Return the key as sent; an invalid one is added to the faults."""
        given = self.one(b"idempotency-key")
        if given is None:
            return None
        text = given.decode("latin-1")
        if len(text) > _KEY_LENGTH_MAX or not _PRINTABLE.fullmatch(text):
            faults.append(_BAD_KEY)
            return None
        return text

    def trace_context(self) -> str | None:
        """Return the trace that the request belongs to."""
        given = self.first(b"traceparent")
        if given is None:
            return None
        context = parse_traceparent(given.decode("latin-1"))
        return context.traceparent if context else None

    def request_id(self) -> str:
        """Return the id that the client or the proxy gave, if it is well-formed, or a new one."""
        given = self.first(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return token_hex(8)

    def _is_chunked(self, http_version: str) -> bool:
        return (
            self._values[b"transfer-encoding"].lower() == b"chunked"
            and b"content-length" not in self._values
            and http_version == "1.1"
        )


def is_loopback_host(host: str) -> bool:
    """Whether a Host header, with any port, names this machine."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    if found["name"] == "localhost":
        return True
    try:
        return ip_address(found["six"] or found["name"]).is_loopback
    except ValueError:
        return False


class RequestContext:
    """A request in progress; routes find it as `scope["context"]`."""

    __slots__ = (
        "client",
        "has_unread_body",
        "headers",
        "request_id",
        "route",
        "started_at",
        "status",
        "token",
    )

    def __init__(self, headers: Headers, client: tuple[str, int] | None) -> None:
        self.headers = headers
        self.client = client
        self.request_id = headers.request_id()
        self.started_at = time.perf_counter()
        self.status = 0
        self.token = ""
        self.route = UNKNOWN_ROUTE
        self.has_unread_body = (
            headers.first(b"content-length") or headers.first(b"transfer-encoding")
        ) is not None


class BodyReader:
    """Reads bodies, bounded in bytes, pieces and seconds each, and in bytes all together.

    A token cannot starve others with bodies that it does not finish. It may hold at most as many
    bytes as are still free, so it gets half, or a third each if two tokens do the same. And only
    `slow_max` of its bodies may be slow, so that the others leave room for other requests.
    """

    def __init__(self, slow_max: int, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._slow_max = slow_max
        self._bytes_max = bytes_max
        self._bytes: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()

    async def read(self, receive: Receive, context: RequestContext, bytes_max: int) -> bytes:
        """Read the body of one request."""
        declared = context.headers.one(b"content-length")
        length = None
        if declared is not None:
            length = int(declared) if declared.isdigit() else bytes_max + 1
            if length > bytes_max:
                raise _too_large(bytes_max)
        token = context.token
        try:
            async with asyncio.timeout(BODY_SECONDS) as deadline:
                with self._slow_after(SLOW_BODY_SECONDS, token, deadline):
                    body = await self._read(receive, token, length, bytes_max)
        except TimeoutError:
            raise Problem("too_slow", f"Send the body within {BODY_SECONDS:g} seconds.") from None
        context.has_unread_body = False
        return body

    @contextmanager
    def _slow_after(self, seconds: float, token: str, deadline: asyncio.Timeout) -> Generator[None]:
        """Count a body as slow after some seconds; end it if its token has too many of them."""
        is_slow = is_refused = False

        def turn_slow() -> None:
            nonlocal is_slow, is_refused
            is_refused = self._slow[token] >= self._slow_max
            is_slow = not is_refused
            self._slow[token] += is_slow
            if is_refused:
                deadline.reschedule(loop.time())

        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, turn_slow)
        try:
            yield
        except asyncio.CancelledError:
            if is_refused:
                raise IntakeFull("Too many slow bodies of one token.") from None
            raise
        finally:
            timer.cancel()
            if is_slow:
                _release(self._slow, token, 1)

    async def _read(
        self, receive: Receive, token: str, length: int | None, bytes_max: int
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Problem("bad_request", "The body is incomplete or wrongly framed.")
                piece: bytes = message.get("body", b"")
                size += len(piece)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                if size == length or not message.get("more_body", False):
                    # Usually the first piece is the whole body.
                    return b"".join((*pieces, piece)) if pieces else piece
                pieces.append(piece)
                if _is_crumbled(len(pieces), size):
                    raise Problem(
                        "bad_request",
                        f"Send the body in pieces (chunks) of {PIECE_BYTES} bytes or more.",
                    )
                self._bytes[token] += len(piece)
                if self._bytes[token] > self._bytes_max - self._bytes.total():
                    raise IntakeFull("Too many large bodies at once. Try again in a moment.")
        finally:
            if pieces:
                _release(self._bytes, token, sum(map(len, pieces)))


def _release(counts: Counter[str], token: str, count: int) -> None:
    counts[token] -= count
    if not counts[token]:
        del counts[token]


async def drain(receive: Receive) -> None:
    """Read and discard what is left of a body, up to a limit, after the response was sent.

    A connection that is closed with unread data is reset, and the client can lose the response.
    """
    size = count = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES_MAX and not _is_crumbled(count, size):
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                count += 1
                size += len(message.get("body", b""))
    except TimeoutError:
        return


def _is_crumbled(pieces: int, size: int) -> bool:
    """Whether a body arrives in so many small pieces that it would keep the event loop busy."""
    return pieces > PIECES_MIN + size // PIECE_BYTES


def _too_large(bytes_max: int) -> Problem:
    return Problem("too_large", f"Send at most {bytes_max} bytes.")
