"""The HTTP server: Granian, embedded in our event loop.

Granian parses HTTP in Rust (hyper) and hands each request to the application as an ASGI scope. It
bounds the size of a request head, the number of connections and the time that a connection may be
silent, and reads no further request of a connection before the previous one is answered. What it
does not bound, the middleware or the proxy does: see docs/decisions/0014-http-server.md.

The server installs no signal handlers; the caller decides when to stop it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from leasehold.domain.errors import InvalidArgument
from leasehold.observe.logs import get_logger
from leasehold.web.limiter import IDLE_SECONDS
from leasehold.web.request_context import HEAD_BYTES_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

# hyper's own limit, which Granian does not let us change.
HEADERS_MAX = 100
CONNECTIONS_MAX = 2000
BACKLOG = 2048
_START_SECONDS = 10.0
# Only raises the level of Granian's logger: its default configuration replaces the handlers of the
# whole process. Its errors reach our handlers through the root logger.
_LOG_CONFIG: dict[str, Any] = {"incremental": True, "formatters": {}, "handlers": {}, "loggers": {}}

_LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8080
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("--tls-cert and --tls-key go together: give both or neither")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class HttpServer:
    """Reserves its address when constructed; start() serves an application until stop()."""

    def __init__(
        self,
        address: Address,
        *,
        grace_seconds: float = 30.0,
        connections_max: int = CONNECTIONS_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._address = address
        self._grace_seconds = grace_seconds
        self._connections_max = connections_max
        self._idle_seconds = idle_seconds
        _require_certificate(address)
        self._reserved = _reserve(address)
        self._host, self._port = self._reserved.getsockname()[:2]
        self._server: Server | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        scheme = "http" if self._address.tls_cert is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}"

    async def start(self, app: FastAPI) -> None:
        """Listen; returns when connections are accepted."""
        server = self._server = self._granian(app)
        self._running = asyncio.create_task(server.serve(), name="http")
        async with asyncio.timeout(_START_SECONDS):
            while not await self._is_listening():
                await asyncio.sleep(0.005)
                self._raise_if_ended()
        self._reserved.close()

    async def until(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; raises if the server ended by itself."""
        requested = asyncio.create_task(stop.wait())
        waited = {requested} if self._running is None else {requested, self._running}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        if not stop.is_set():
            self._raise_if_ended()

    async def stop(self) -> None:
        """Accept no more connections, answer the requests in progress, and close."""
        self._reserved.close()
        server, running = self._server, self._running
        self._server = None
        if server is None or running is None:
            return
        server.stop()
        # Granian waits for its clients without a limit, and cannot be made to drop them: those that
        # are left lose their connection when the process exits.
        _, waiting = await asyncio.wait({running}, timeout=self._grace_seconds)
        if waiting:
            _LOG.warning("server_stop_timed_out", grace_seconds=self._grace_seconds)

    def _granian(self, app: FastAPI) -> Server:
        return Server(
            app,
            address=self._host,
            port=self._port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            # The number of connections: no further one is accepted before another has ended.
            backpressure=self._connections_max,
            http1_settings=HTTP1Settings(
                header_read_timeout=round(1000 * self._idle_seconds),
                # Larger than we accept, so that our own refusal says what is wrong.
                max_buffer_size=2 * HEAD_BYTES_MAX,
            ),
            log_level=LogLevels.error,
            log_dictconfig=_LOG_CONFIG,
            ssl_cert=self._address.tls_cert,
            ssl_key=self._address.tls_key,
            ssl_protocol_min=SSLProtocols.tls12,
        )

    async def _is_listening(self) -> bool:
        with socket.socket(self._reserved.family) as probe:
            probe.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(probe, (self._host, self._port))
            except ConnectionRefusedError:
                return False
            return True

    def _raise_if_ended(self) -> None:
        if self._running is not None and self._running.done():
            self._running.result()
            raise RuntimeError("the HTTP server ended by itself")


def _reserve(address: Address) -> socket.socket:
    """Bind the address, so that a free port is known and an occupied one is refused at once.

    Granian binds it again, with SO_REUSEPORT. That would also share a port with another process,
    so we first try to listen without that option. From then on our socket keeps others out: they
    try the same.
    """
    try:
        with _bound(address, address.port, socket.SO_REUSEADDR) as probe:
            probe.listen()
            port: int = probe.getsockname()[1]
        try:
            return _bound(address, port, socket.SO_REUSEPORT)
        except OSError:
            # Connections of another server that was here before are in TIME_WAIT.
            return _bound(address, port, socket.SO_REUSEPORT, socket.SO_REUSEADDR)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"cannot serve on {address.host}:{address.port}: {error}") from None


def _bound(address: Address, port: int, *options: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((address.host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _require_certificate(address: Address) -> None:
    """Refuse a certificate that cannot be loaded, before anything else is started."""
    if address.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificate cannot be used: {error}") from None
