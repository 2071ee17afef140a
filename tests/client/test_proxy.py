"""The client uses the proxy that the environment names for the API's URL."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from leasehold.domain.errors import ApiUnavailable, InvalidArgument
from tests.support.http_gateways import RawServer

RECEIPT = json.dumps({"intent_id": str(uuid4())}).encode()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def accept(_reader, writer):
    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(RECEIPT) + RECEIPT)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_request_goes_through_the_proxy(connect, monkeypatch, variable):
    async with RawServer(accept).running() as proxy:
        monkeypatch.setenv(variable, proxy.url.replace("://", "://ann:secret@"))
        async with connect("http://leasehold.invalid") as client:
            assert (await client.enqueue("sms", 1)).is_new
    [request] = proxy.requests
    assert request.startswith(b"POST http://leasehold.invalid/v1/intents HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n" in request


async def test_host_without_proxy_is_asked_directly(connect, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    async with RawServer(accept).running() as server, connect(server.url) as client:
        assert (await client.enqueue("sms", 1)).is_new


async def test_try_ends_however_slowly_the_proxy_opens_a_tunnel(connect, monkeypatch):
    async def drip(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-A: b\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with RawServer(drip).running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        limits = {"retry_seconds": 0, "response_seconds": 2}
        async with connect("https://leasehold.invalid", **limits) as client:
            with pytest.raises(ApiUnavailable, match="did not answer"):
                await asyncio.wait_for(client.enqueue("sms", 1), 20)
    assert proxy.requests[0].startswith(b"CONNECT leasehold.invalid:443 HTTP/1.1\r\n")


def test_value_that_is_no_proxy_is_refused_without_showing_it(connect, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "ftp://ann:secret@proxy")
    with pytest.raises(InvalidArgument, match="http_proxy") as caught:
        connect("http://leasehold.invalid")
    assert "secret" not in str(caught.value)
