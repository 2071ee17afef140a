"""The server: sockets, TLS, and an end in order. Everything that is read is bounded in `protocol`.

It takes no signals; whoever runs it says when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn

from leasehold.domain.errors import InvalidArgument
from leasehold.web.protocol import BoundedProtocol

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from fastapi import FastAPI

KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to serve, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8080
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("--tls-cert and --tls-key go together: give both or neither")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can come here."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class HttpServer:
    """Has its address from the beginning; start() to serve an application, and stop() to answer
    what was asked and end.
    """

    def __init__(self, address: Address, *, grace_seconds: float = 30.0) -> None:
        self._address = address
        self._tls = _tls(address)
        self._socket = _bound(address)
        self._grace_seconds = grace_seconds
        self._server: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Say where it is."""
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._address.tls_cert is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def start(self, app: FastAPI) -> None:
        """Listen; returns when requests are answered."""
        server = self._server = _WithoutSignals(self._config(app))
        self._running = asyncio.create_task(server.serve([self._socket]), name="http")
        while not server.started:
            await asyncio.sleep(0.005)
            if self._running.done():
                self._running.result()

    async def until(self, stop: asyncio.Event) -> None:
        """Serve until somebody says stop; raises where serving ended by itself."""
        asked = asyncio.create_task(stop.wait())
        running = self._running
        waited = {asked} if running is None else {asked, running}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if running is not None and running.done():
            running.result()

    async def stop(self) -> None:
        """Take no more connections, answer what was asked, and hang up."""
        if self._server is not None:
            self._server.should_exit = True
        if self._running is not None:
            await self._running
        self._socket.close()

    def _config(self, app: FastAPI) -> uvicorn.Config:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # What is worth a line of the log, we say ourselves.
            log_level="error",
            access_log=False,
            # Who the client is, we take from nobody's word.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(self._grace_seconds)),
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = self._tls
        return config


class _WithoutSignals(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        # Until one of them listens, two processes can have the same address.
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        bound.close()
        raise InvalidArgument(f"cannot serve on {address.host}:{address.port}: {error}") from None
    return bound


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificate cannot be used: {error}") from None
    return context
