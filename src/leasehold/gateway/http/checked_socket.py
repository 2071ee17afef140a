"""Sockets that check the lease right before they hand bytes of a call to the kernel.

aiohttp writes a request from another task than ours, and a full socket is written to later. A
process that is paused in between would send when it wakes, long after its lease was given to
another. So the check is made where bytes leave: in `send` and `sendmsg`, right before the system
call, for every part of a request. If it fails, the connection is aborted.

asyncio's own event loop writes through the methods of the socket that it was given, also below TLS.
Others, such as uvloop, write to the file descriptor: see `require_checks`.
"""

from __future__ import annotations

import asyncio
import socket
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import aiohttp

from leasehold.gateway.errors import GatewayMisconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _typeshed import ReadableBuffer
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from leasehold.domain.contract import Contract


@dataclass(slots=True, eq=False)
class Call:
    """How far one request got."""

    may_send: Callable[[], bool]
    has_connection: bool = False
    has_sent: bool = False
    is_refused: bool = False  # bytes were held back, because the lease is not trusted

    @property
    def may_be_sent(self) -> bool:
        """Whether the gateway may have received any of it."""
        return self.has_connection and (self.has_sent or not self.is_refused)

    def check(self) -> None:
        """Raise an error that aborts the connection, unless bytes may leave now."""
        if not self.may_send():
            self.is_refused = True
            raise ConnectionAbortedError("the lease is not trusted any more")
        self.has_sent = True


# The call that the current task makes: it gets the connection that `connect` returns.
current_call: ContextVar[Call] = ContextVar("current_call")
# Every open socket by its file descriptor, which is all that a transport tells about its socket.
_open_sockets: WeakValueDictionary[int, CheckedSocket] = WeakValueDictionary()


class CheckedSocket(socket.socket):
    """A socket that sends for a call only while its lease is trusted. TLS handshakes are free."""

    __slots__ = ("call",)
    call: Call | None

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Send, if the call may."""
        if self.call is not None:
            self.call.check()
        return super().send(data, flags)

    def sendmsg(self, buffers: Iterable[ReadableBuffer], *more: Any) -> int:  # noqa: ANN401 (passed on)
        """Send, if the call may. Python 3.12 and newer write several buffers this way."""
        if self.call is not None:
            self.call.check()
        return super().sendmsg(buffers, *more)


def open_socket(address: tuple[Any, ...]) -> CheckedSocket:
    """Make the socket of a new connection: the connector's `socket_factory`."""
    family, kind, protocol, _, _ = address
    opened = CheckedSocket(family, kind, protocol)
    opened.call = None
    _open_sockets[opened.fileno()] = opened
    return opened


class CheckedConnector(aiohttp.TCPConnector):
    """Gives each connection to the call that uses it. A connection serves one call at a time."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (the parameter is aiohttp's)
    ) -> Connection:
        """Return a connection, new or idle, that belongs to the current call from now on."""
        connection = await super().connect(req, traces, timeout)
        call = current_call.get()
        if connection.transport is not None:
            number = connection.transport.get_extra_info("socket").fileno()
            _open_sockets[number].call = call
        call.has_connection = True
        return connection


def has_checks() -> bool:
    """Whether the running event loop writes through our sockets. Only asyncio's own is known to."""
    try:
        return isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)
    except RuntimeError:
        return False


def require_checks(contract: Contract) -> None:
    """Refuse an event loop that does not write through our sockets.

    `keyed` and `fenced` gateways need no check: they ignore or refuse what arrives too late.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if contract.guarantee in {"lookup", "blind"} and not isinstance(
        loop, asyncio.SelectorEventLoop
    ):
        raise GatewayMisconfigured(
            f"an HTTP gateway with the guarantee {contract.guarantee} cannot run on"
            f" {type(loop).__module__}: only asyncio's own event loop lets the lease be checked"
            " when bytes are sent; start the program with asyncio.run"
        )
