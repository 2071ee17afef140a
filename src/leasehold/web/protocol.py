"""From bytes to requests, on top of uvicorn's parser: what it leaves unbounded is bounded here.

- The head of a request has a limit in bytes, in headers and in seconds; so has its body in seconds,
  and what comes around the body: chunk extensions, and trailers, which nobody here reads.
- A request that two programs could read differently (two lengths, a length and chunks) is refused,
  so that nobody can hide one request inside another behind a proxy. For the same reason an offer to
  upgrade is read over: the parser would take the body for another protocol, and uvicorn for another
  request.
- A client that does not read its answers is hung up on, and so is one too many.
- After an answer that came before the whole body, the rest is read and thrown away for a moment:
  to close at once would destroy the answer on its way.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasehold.web.cycle import Cycle
from leasehold.web.problems import MEDIA_TYPE, RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn._types import ASGI3Application
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    # Method, path, status, seconds, request id, client.
    Tell = Callable[[str, bytes, int, float, str, tuple[str, int] | None], None]

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
TRAILER_BYTES_MAX = 8 * 1024
HEAD_SECONDS = 10.0
BODY_SECONDS = 20.0
WRITE_SECONDS = 30.0
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 16 * 1024 * 1024
CONNECTIONS_MAX = 2000
_VERSIONS = frozenset({"1.0", "1.1"})
# Where the application finds that a request of its own was refused here: (status, request id).
REFUSED = "leasehold.refused"


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    connections_max = CONNECTIONS_MAX

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        # What came since the last piece of the body and is none itself, and what of it was headers.
        self._around_bytes = 0
        self._trailer_bytes = 0
        self._discarded = 0
        # What of a request is still to come: its head, its body, or nothing.
        self._is_in_head = True
        self._is_in_body = False
        # The head of a request that offers to upgrade, without that.
        self._head_again = b""
        # Whether nothing more is taken: what came was refused.
        self._is_over = False
        self._began_at = 0.0
        self.url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  (as uvicorn's own)
        """Begin to wait for a request, or refuse the connection."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse(_TOO_MANY_CONNECTIONS)
        else:
            self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._expect(None)
        self._stop_write_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see to it that the rest comes in time."""
        if self._is_over:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        else:
            self._around_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._is_over or self.transport.is_closing():
            return
        if self._is_in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._is_in_body and self._around_bytes > TRAILER_BYTES_MAX:
            # The parser keeps a trailer until its line ends, so it must not wait for that.
            self._refuse(_TRAILERS_TOO_LARGE)
        elif self._deadline is None and self._is_in_body:
            self._expect(BODY_SECONDS)
        elif self._deadline is None and self._head_bytes:
            self._expect(HEAD_SECONDS)

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  (asyncio reads it)
        """Answer a client that has said all that it will say, also if it says so."""
        if not self._is_in_body and self._is_unanswered():
            self.cycle.keep_alive = False
            # Under TLS there is no half of a connection.
            return self.scheme == "http" and not self.cycle.response_started
        return False

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._head_again = self._head_again, b""
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("this is no request that can be read")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the form of all our refusals."""
        self._refuse(Problem("bad_request", msg))

    def on_message_begin(self) -> None:
        """Know that a head has begun, also where its first bytes came with another request."""
        self._head_bytes = self._head_bytes or 1
        self._began_at = time.perf_counter()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. One after the body is none: who reads it there could be told anything."""
        if not self._is_in_body:
            super().on_header(name, value)
            return
        self._trailer_bytes += len(name) + len(value) + len(b": \r\n")
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            self._refuse(_TRAILERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Take the request, unless its head says why not."""
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(refusal)
        if self._is_over:
            return
        if self.parser.should_upgrade():
            self._head_again = self._without_upgrade()
            return
        self._begin()
        self._is_in_head = False
        self._is_in_body = True
        self._expect(None)

    def _begin(self) -> None:
        """Have the request answered, or queue it up behind those that came before it."""
        version = self.parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        is_behind = self._is_unanswered()
        self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        app = cast("ASGI3Application", self.app)  # pyright: ignore[reportUnknownMemberType]
        if is_behind:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, app))
        else:
            self._start_asgi_task(self.cycle, app)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, or throw it away where the answer was given without it."""
        if self._is_over:
            return
        self._around_bytes = 0
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > LINGER_BYTES_MAX:
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Know that the request is whole, and that the next byte belongs to another one."""
        if self._head_again or self._is_over:
            return
        self._is_in_body = False
        self._is_in_head = True
        self.url = b""
        self._head_bytes = self._discarded = self._around_bytes = self._trailer_bytes = 0
        self._expect(None)
        if self.cycle.response_complete:
            # Its rest was thrown away; from here on it is a connection that waits like any other.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        if self._is_over and not self.pipeline:
            self.transport.close()
        super().on_response_complete()
        if self._is_in_body and not self.transport.is_closing():
            self._expect(LINGER_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Hang up on a client that asks for nothing more."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """Give a client that does not read some time."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        self._stop_write_deadline()
        super().resume_writing()

    def _expect(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        is_answered = self._is_in_body and self.cycle.response_started
        if is_answered or not self._head_bytes:
            self.transport.close()
        else:
            self._refuse(_TOO_SLOW)

    def _refuse(self, problem: Problem) -> None:
        """Answer without anybody having seen the request, and hang up."""
        if self._is_over or self.transport.is_closing():
            return
        self._is_over = True
        self._expect(None)
        if self._is_in_body and self.cycle.response_complete:
            self.transport.close()
            return
        request_id = token_hex(8)
        if self._is_in_body and not self.pipeline:
            self._refuse_begun(problem, request_id)
            return
        self._tell(problem, request_id)
        if self._is_in_body:
            # It has not begun, and never will.
            self.pipeline.popleft()
        elif not self._is_unanswered():
            self.transport.write(_answer(problem, request_id))
            self.transport.close()
            return
        else:
            self.cycle.keep_alive = False
        # What was asked before is answered, and then nothing more.
        self.flow.pause_reading()

    def _refuse_begun(self, problem: Problem, request_id: str) -> None:
        """Refuse a request that the application has, which tells of it when it sees that."""
        if self.cycle.response_started:
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        cast("dict[str, Any]", self.cycle.scope)[REFUSED] = (problem.status, request_id)
        self.transport.write(_answer(problem, request_id))
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self.transport.close()

    def _tell(self, problem: Problem, request_id: str) -> None:
        """Have it counted and logged, by an application that does so."""
        app = cast("Any", self.app)  # pyright: ignore[reportUnknownMemberType]
        tell: Tell | None = getattr(app, "tell_refused", None)
        if tell is None:
            return
        # As far as it was read; what stands after the path may be a secret.
        method = self.parser.get_method().decode("ascii") if self.url else ""
        seconds = time.perf_counter() - self._began_at if self.url else 0.0
        path = self.url.partition(b"?")[0] if self.url.startswith(b"/") else b""
        tell(method, path, problem.status, seconds, request_id, self.client)

    def _is_unanswered(self) -> bool:
        # Before the first request there is none.
        cycle = cast("Cycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _refusal(self) -> Problem | None:
        size = len(self.url)
        lengths = chunks = hosts = 0
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths += 1
            elif name == b"transfer-encoding":
                chunks += 1 if value.lower() == b"chunked" else 2
        if size > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            return _HEAD_TOO_LARGE
        version = self.parser.get_http_version()
        if version not in _VERSIONS or self.parser.get_method() == b"CONNECT":
            return _NOT_OFFERED
        if lengths + chunks > 1 or hosts > 1 or (not hosts if version == "1.1" else chunks):
            return _AMBIGUOUS
        return None

    def _without_upgrade(self) -> bytes:
        """Write the head anew, as if nothing but an answer had been asked for."""
        version = self.parser.get_http_version().encode()
        kept = [
            name + b": " + value
            for name, value in self.headers
            if name not in {b"upgrade", b"connection", b"http2-settings"}
        ]
        first = self.parser.get_method() + b" " + self.url + b" HTTP/" + version
        return b"\r\n".join([first, *kept, b"", b""])

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def _answer(problem: Problem, request_id: str) -> bytes:
    body = problem.body(request_id)
    headers = [
        *problem.headers,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    phrase = HTTPStatus(problem.status).phrase
    lines = [f"HTTP/1.1 {problem.status} {phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", body])


_HEAD_TOO_LARGE = Problem(
    "headers_too_large",
    f"the head of a request may have {HEAD_BYTES_MAX} bytes and {HEADERS_MAX} headers at most",
)
_TRAILERS_TOO_LARGE = Problem(
    "headers_too_large", f"what comes after a body may have {TRAILER_BYTES_MAX} bytes at most"
)
_NOT_OFFERED = Problem("bad_request", "HTTP/1.1 is offered here, and no tunnel")
_AMBIGUOUS = Problem(
    "bad_request",
    "send one Host, and one Content-Length or one Transfer-Encoding: chunked, or neither",
)
_TOO_SLOW = Problem(
    "too_slow",
    f"a head must come within {HEAD_SECONDS:g} seconds, and a body within {BODY_SECONDS:g}",
)
_TOO_MANY_CONNECTIONS = Problem(
    "overloaded", "too many connections: try again in a moment", retry_seconds=RETRY_SECONDS
)
