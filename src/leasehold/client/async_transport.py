"""AsyncTransport: sends requests as httpx does by itself, and ends each at a moment.

`make generate` writes sync_transport.py from this file. See connection.py for the reason.

A process that was forked has its own connections: on one that two processes share, each would read
answers to the other's requests. Those that it inherited are neither used nor closed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import httpcore
import httpx

from leasehold.client.connection import (
    CONNECTIONS_MAX,
    IDLE_CONNECTIONS_MAX,
    IDLE_SECONDS,
    as_httpx_errors,
    remaining_seconds,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable

# A write may take as many waits as it has pieces, so the time is looked at before each.
_WRITE_BYTES = 65536


class AsyncTransport(httpx.AsyncBaseTransport):
    """Sends the requests of one client."""

    def __init__(self, tls: ssl.SSLContext, proxy: httpcore.Proxy | None) -> None:
        self._tls = tls
        self._proxy = proxy
        self._pools: dict[int, httpcore.AsyncConnectionPool] = {}  # by process

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response, whose body is still to be read."""
        url = request.url
        sent = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with as_httpx_errors():
            response = await self._pool().handle_async_request(sent)
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=cast("dict[str, Any]", response.extensions),  # pyright: ignore[reportUnknownMemberType]
        )

    async def aclose(self) -> None:
        """Close the connections of this process."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            await pool.aclose()

    def _pool(self) -> httpcore.AsyncConnectionPool:
        process = os.getpid()
        return self._pools.get(process) or self._pools.setdefault(process, self._new_pool())

    def _new_pool(self) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            proxy=self._proxy,
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=IDLE_CONNECTIONS_MAX,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Network(),
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with as_httpx_errors():
            async for chunk in self._response.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


class _Network(httpcore.AsyncNetworkBackend):
    """Opens connections; every timeout may be a moment."""

    def __init__(self) -> None:
        # Where a library is missing, httpcore has a class that raises in its place.
        self._network: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()  # pyright: ignore[reportAttributeAccessIssue]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        seconds = remaining_seconds(timeout, httpcore.ConnectTimeout)
        return _Stream(
            await self._network.connect_tcp(host, port, seconds, local_address, socket_options)
        )


class _Stream(httpcore.AsyncNetworkStream):
    """One connection; every timeout may be a moment."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._process = os.getpid()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._process != os.getpid():  # a stream of events that was open when we were forked
            raise httpcore.ReadError("the connection belongs to another process")
        return await self._stream.read(max_bytes, remaining_seconds(timeout, httpcore.ReadTimeout))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            seconds = remaining_seconds(timeout, httpcore.WriteTimeout)
            await self._stream.write(buffer[start : start + _WRITE_BYTES], seconds)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        seconds = remaining_seconds(timeout, httpcore.ConnectTimeout)
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, seconds))

    async def aclose(self) -> None:
        if self._process == os.getpid():
            await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 (the network's own)
        return self._stream.get_extra_info(info)
