"""A call ends in time and in memory, whatever the server does. No server here ends by itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from uuid import uuid4

import httpx
import pytest

from leasehold.client import connection
from leasehold.domain.errors import AccessDenied, ApiError, ApiUnavailable, InvalidArgument
from leasehold.domain.intent import NewIntent
from tests.support.certificates import self_signed
from tests.support.http_gateways import RawServer

# A call that is not limited takes for ever; only then does a test wait this long.
HANGS_SECONDS = 20
# The server never answers in full. It must have the request within that time.
LIMITS = {"retry_seconds": 0, "response_seconds": 2}
# For a server that answers.
ONE_TRY = {"retry_seconds": 0}
HEAD = b"HTTP/1.1 201 Created\r\n"
RECEIPT = json.dumps({"intent_id": str(uuid4())}).encode()


async def drip(writer, *pieces):
    """Send the first pieces at once, then the last one again and again."""
    writer.writelines(pieces[:-1])
    while True:
        writer.write(pieces[-1])
        await writer.drain()
        await asyncio.sleep(0.05)


SLOW = {
    "says nothing": lambda _writer: asyncio.sleep(3600),
    "status line byte by byte": lambda writer: drip(writer, b"HTTP/1.1 200 ", b"O"),
    "endless headers": lambda writer: drip(writer, HEAD, b"X-A: b\r\n"),
    "endless promises": lambda writer: drip(writer, b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body byte by byte": lambda writer: drip(writer, HEAD, b"Content-Length: 99999\r\n\r\n", b"x"),
    "chunk by chunk": lambda writer: drip(
        writer, HEAD, b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"
    ),
    "half of a body": lambda writer: drip(writer, HEAD, b"Content-Length: 9\r\n\r\nx", b""),
}


async def test_try_ends_however_slowly_the_server_answers(connect):
    async def run_out(act):
        async with (
            RawServer(lambda _reader, writer: act(writer)).running() as server,
            connect(server.url, **LIMITS) as client,
        ):
            with pytest.raises(ApiUnavailable, match="did not answer") as caught:
                await asyncio.wait_for(client.enqueue("sms", 1), HANGS_SECONDS)
            return caught.value, server.requests

    ended = await asyncio.gather(*map(run_out, SLOW.values()))
    for name, (error, [request]) in zip(SLOW, ended, strict=True):
        assert error.outcome_unknown, name
        assert error.idempotency_key.encode() in request, name


async def test_tries_end_with_the_retry_time(connect):
    async def act(_reader, writer):
        await drip(writer, HEAD, b"X-A: b\r\n")

    async with (
        RawServer(act).running() as server,
        connect(server.url, retry_seconds=3, response_seconds=0.5) as client,
    ):
        with pytest.raises(ApiUnavailable):
            await asyncio.wait_for(client.get(uuid4()), HANGS_SECONDS)
        assert 2 <= len(server.requests) <= 8


async def test_server_may_take_as_long_as_the_caller_waits(connect):
    async def act(_reader, writer):
        await asyncio.sleep(1.5 if len(server.requests) == 1 else 3600)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(RECEIPT) + RECEIPT)

    limits = {"retry_seconds": 0, "response_seconds": 1}
    async with RawServer(act).running() as server, connect(server.url, **limits) as client:
        assert (await client.enqueue("sms", 1, wait_seconds=20)).is_new
        with pytest.raises(ApiUnavailable):
            await client.enqueue("sms", 1)


@pytest.fixture
def deaf_server():
    """The address of a server whose connections nobody ever reads from."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_try_ends_if_the_server_does_not_read(connect, deaf_server):
    many = [NewIntent(target="sms", payload="x" * 500_000) for _ in range(8)]
    async with connect(f"http://{deaf_server}", **LIMITS) as client:
        with pytest.raises(ApiUnavailable, match="did not answer") as caught:
            await asyncio.wait_for(client.enqueue_many(many), HANGS_SECONDS)
    # The kernel may take the whole body; then the response is what does not come.
    assert isinstance(caught.value.__cause__, (httpx.WriteTimeout, httpx.ReadTimeout))
    assert caught.value.outcome_unknown


async def test_try_ends_if_the_server_does_not_answer_the_tls_handshake(connect, deaf_server):
    async with connect(f"https://{deaf_server}", **LIMITS) as client:
        with pytest.raises(ApiUnavailable, match="did not answer") as caught:
            await asyncio.wait_for(client.enqueue("sms", 1), HANGS_SECONDS)
    assert isinstance(caught.value.__cause__, httpx.ConnectTimeout)
    assert not caught.value.outcome_unknown


@pytest.fixture
def certificate(tmp_path):
    return self_signed(tmp_path, "IP:127.0.0.1")


@pytest.mark.program("openssl")
async def test_limits_hold_inside_tls(connect, certificate):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)

    async def act(_reader, writer):
        if len(server.requests) == 1:
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(RECEIPT) + RECEIPT)
        else:
            await drip(writer, HEAD, b"X-A: b\r\n")

    async with (
        RawServer(act).running(tls) as server,
        connect(server.url, ca_file=certificate[0], **LIMITS) as client,
    ):
        assert (await client.enqueue("sms", 1)).is_new
        with pytest.raises(ApiUnavailable, match="did not answer"):
            await asyncio.wait_for(client.enqueue("sms", 1), HANGS_SECONDS)
        # The connection of the first request was used again.
        assert (server.connections, len(server.requests)) == (1, 2)


class Flood:
    """Sends a response without end, and counts its bytes."""

    def __init__(self, head):
        self._head = head
        self.sent_bytes = 0

    async def __call__(self, _reader, writer):
        writer.write(self._head)
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        while True:
            writer.write(piece)
            await writer.drain()
            self.sent_bytes += len(piece)


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(connection, "RESPONSE_BYTES_MAX", 1024 * 1024)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(
    ("status", "length", "kind"),
    [
        (b"201 Created", b"Transfer-Encoding: chunked", ApiError),
        (b"200 OK", b"Content-Length: 3000000000", ApiError),
        (b"200 OK", b"Connection: close", ApiError),
        (b"500 Oops", b"Transfer-Encoding: chunked", ApiError),
        (b"503 Away", b"Transfer-Encoding: chunked", ApiUnavailable),
        (b"401 No", b"Transfer-Encoding: chunked", AccessDenied),
    ],
    ids=lambda one: one.decode() if isinstance(one, bytes) else "",
)
async def test_endless_response_is_not_read_to_its_end(connect, status, length, kind):
    flood = Flood(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n\r\n")
    async with (
        RawServer(flood).running() as server,
        connect(server.url, **ONE_TRY) as client,
    ):
        with pytest.raises(kind) as caught:
            await asyncio.wait_for(client.enqueue("sms", 1), HANGS_SECONDS)
        assert type(caught.value) is kind
        assert caught.value.idempotency_key.encode() in server.requests[0]
        if status.startswith(b"2"):
            assert "more than 1048576 bytes" in str(caught.value)
            assert caught.value.outcome_unknown
    # What the network buffers comes on top of the limit.
    assert flood.sent_bytes < 32 * 1024 * 1024


@pytest.mark.usefixtures("small_limit")
async def test_endless_refusal_of_the_event_stream_is_not_read_to_its_end(connect):
    flood = Flood(b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with RawServer(flood).running() as server, connect(server.url, **ONE_TRY) as client:
        with pytest.raises(AccessDenied):
            await asyncio.wait_for(anext(client.events()), HANGS_SECONDS)
    assert flood.sent_bytes < 32 * 1024 * 1024


async def test_compressed_response_is_not_unpacked(connect):
    # The client asks for none, and a few kilobytes can unpack to gigabytes.
    packed = gzip.compress(RECEIPT + b" " * 10_000_000)

    async def act(_reader, writer):
        writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed))
        writer.write(packed)

    async with RawServer(act).running() as server, connect(server.url, **ONE_TRY) as client:
        with pytest.raises(ApiError, match="compressed") as caught:
            await client.enqueue("sms", 1)
    assert caught.value.outcome_unknown


async def test_largest_page_of_the_api_fits_the_limit(connect):
    intent = {
        "intent_id": str(uuid4()),
        "status": "rejected",
        "created_at": "2026-11-15T10:00:00Z",
        **dict.fromkeys(("target", "stream", "idempotency_key", "code"), "\u20ac" * 255),
        **dict.fromkeys(("reason", "reference", "detail"), "\u20ac" * 8192),
    }
    page = json.dumps({"intents": [intent] * 200, "next": None}).encode()

    async def act(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)

    async with RawServer(act).running() as server, connect(server.url) as client:
        assert len((await client.page()).intents) == 200


@pytest.mark.parametrize("name", ["retry_seconds", "response_seconds"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_time_limit_out_of_range_is_refused(connect, name, seconds):
    with pytest.raises(InvalidArgument, match=name):
        connect("http://127.0.0.1:9", **{name: seconds})
