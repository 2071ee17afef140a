"""One request and its answer, on top of uvicorn's: the answer leaves in one piece.

uvicorn writes the head of an answer and its body by themselves. Each is a call of the system and a
packet for the client to wake up for, which is a good part of what a small answer costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uvicorn._types import ASGISendEvent

_WITHOUT_BODY = frozenset({204, 304})


class Cycle(RequestResponseCycle):
    """Takes what an application sends, and writes it."""

    _head = b""
    _ends_with_connection = False

    async def send(self, message: ASGISendEvent) -> None:
        """Keep the head until there is a body to go with it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started and message["type"] == "http.response.start":
            self.response_started = True
            self.waiting_for_100_continue = False
            headers = (*self.default_headers, *message.get("headers", ()))
            self._head = self._written(message["status"], headers)
        elif self.response_started and message["type"] == "http.response.body":
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"the application sent {message['type']} out of turn")

    def _written(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [STATUS_LINE[status][:-2]]
        is_closed = False
        for given, value in headers:
            name = given.lower()
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection":
                is_closed = value.lower() == b"close"
                self.keep_alive = self.keep_alive and not is_closed
            lines.append(name + b": " + value)
        if not self.keep_alive and not is_closed:
            lines.append(b"connection: close")
        if self.chunked_encoding is None and status not in _WITHOUT_BODY:
            # An old client knows no chunks: the end of the connection is the end of the answer.
            self._ends_with_connection = self.scope["http_version"] == "1.0"
            self.chunked_encoding = not self._ends_with_connection
            if self.chunked_encoding:
                lines.append(b"transfer-encoding: chunked")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
            raise RuntimeError("a header of an answer has a line of its own in it")
        return head

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if self.response_complete:
            raise RuntimeError("the application sent more than a whole answer")
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            body = _chunk(body, is_last=is_last)
        elif not self._ends_with_connection:
            self.expected_content_length -= len(body)
        if head or body:
            self.transport.write(head + body)
        if is_last:
            self._complete()

    def _complete(self) -> None:
        if self.expected_content_length != 0:
            raise RuntimeError("the body of an answer is not as long as its head says")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _chunk(body: bytes, *, is_last: bool) -> bytes:
    piece = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return piece + b"0\r\n\r\n" if is_last else piece
