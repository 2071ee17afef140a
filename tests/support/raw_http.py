"""Bytes over a TCP connection to an HTTP server, and the statuses that come back."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WAIT_SECONDS = 30.0
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def statuses(answer: bytes) -> list[int]:
    """The statuses of all responses."""
    return [int(one) for one in _STATUS.findall(answer)]


class Answer(bytes):
    """What came back on a connection."""

    is_closed = False
    """Whether the server closed the connection by itself, before the client said it was done."""


def connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=WAIT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(
    address: tuple[str, int],
    *pieces: bytes,
    responses: int = 1,
    quiet_seconds: float = WAIT_SECONDS,
    pause_seconds: float = 0.0,
) -> Answer:
    """Send pieces of a request and return what comes back.

    Ends when the server closes. After so many complete responses, or if nothing comes for
    `quiet_seconds`, the client says that it will send no more, and waits for the server to close.
    """
    has_bodies = not b"".join(pieces[:4]).startswith(b"HEAD")
    with connect(address) as connection:
        with suppress(OSError):  # refused before all was sent
            _send(connection, pieces, pause_seconds)
        answer = b""
        with suppress(OSError):
            connection.settimeout(quiet_seconds)
            with suppress(TimeoutError):
                while _complete(answer, has_bodies=has_bodies) < responses:
                    piece = connection.recv(65536)
                    answer += piece
                    if not piece:
                        closed = Answer(answer)
                        closed.is_closed = True
                        return closed
            connection.settimeout(WAIT_SECONDS)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        return Answer(answer)


def _send(connection: socket.socket, pieces: Iterable[bytes], pause_seconds: float) -> None:
    for number, piece in enumerate(pieces):
        if number and pause_seconds:
            time.sleep(pause_seconds)
        connection.sendall(piece)


def _complete(answer: bytes, *, has_bodies: bool) -> int:
    """Count the complete responses with a Content-Length; to HEAD they have no body."""
    count = 0
    while answer:
        head, end, rest = answer.partition(b"\r\n\r\n")
        if not end:
            break
        if head.startswith(b"HTTP/1.1 100"):
            answer = rest
            continue
        found = _LENGTH.search(head)
        length = int(found[1]) if found and has_bodies else 0
        if len(rest) < length:
            break
        count += 1
        answer = rest[length:]
    return count
