"""The HTTP server: its address, and how it stops."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.web.server import Address, HttpServer
from tests.support.engine import until

WAIT_SECONDS = 30
arrived, may_go = asyncio.Event(), asyncio.Event()


async def app(scope, _receive, send):
    """Answers `ok`: on /slow when it is let, and with more than a client buffers on /endless."""
    if scope["path"] == "/slow":
        arrived.set()
        await may_go.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b"x" * 10_000_000 if scope["path"] == "/endless" else b"ok"
    await send({"type": "http.response.body", "body": body})


async def get(server, path="/"):
    async with httpx.AsyncClient(timeout=WAIT_SECONDS) as client:
        return (await client.get(f"{server.url}{path}")).text


def port_of(server):
    return int(server.url.rpartition(":")[2])


async def test_occupied_port_is_refused_before_and_after_the_start():
    server = HttpServer(Address(port=0))
    with pytest.raises(InvalidArgument, match="cannot serve on"):
        HttpServer(Address(port=port_of(server)))
    await server.start(app)
    with pytest.raises(InvalidArgument, match="cannot serve on"):
        HttpServer(Address(port=port_of(server)))
    assert await get(server) == "ok"
    await server.stop()


async def test_port_can_be_used_again_at_once():
    port = 0
    for _ in range(3):
        server = HttpServer(Address(port=port))
        port = port_of(server)
        await server.start(app)
        assert await get(server) == "ok"
        await server.stop()


async def test_port_of_another_server_can_be_used_at_once():
    """Its last connection, which it closed itself, is still in TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            other.accept()[0].close()
            assert client.recv(1) == b""
    server = HttpServer(Address(port=port))
    await server.start(app)
    assert await get(server) == "ok"
    await server.stop()


async def test_ipv6_address_is_served():
    server = HttpServer(Address(host="::1", port=0))
    assert server.url.startswith("http://[::1]:")
    await server.start(app)
    assert await get(server) == "ok"
    await server.stop()


async def test_stop_answers_requests_in_progress_and_closes_idle_connections():
    server = HttpServer(Address(port=0))
    await server.start(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    request = asyncio.create_task(get(server, "/slow"))
    await asyncio.wait_for(arrived.wait(), WAIT_SECONDS)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.2)
    assert not stopping.done()
    may_go.set()
    assert await request == "ok"
    await stopping
    assert await asyncio.wait_for(reader.read(), WAIT_SECONDS) == b""
    writer.close()
    with pytest.raises(httpx.ConnectError):
        await get(server)


async def test_stop_does_not_wait_for_a_client_that_does_not_read():
    server = HttpServer(Address(port=0), grace_seconds=0.5)
    await server.start(app)
    with socket.create_connection(("127.0.0.1", port_of(server))) as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await asyncio.to_thread(client.recv, 1) == b"H"  # it is being answered
        began_at = time.monotonic()
        await asyncio.wait_for(server.stop(), WAIT_SECONDS)
        assert time.monotonic() - began_at > 0.4
    # When the client leaves, the server's own task ends too.
    await until(lambda: server._running.done())


async def test_server_that_ends_by_itself_is_noticed():
    server = HttpServer(Address(port=0))
    await server.start(app)
    server._server.stop()
    with pytest.raises(RuntimeError, match="ended by itself"):
        await asyncio.wait_for(server.until(asyncio.Event()), WAIT_SECONDS)
    await server.stop()
