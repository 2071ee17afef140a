"""A call whose lease is not trusted any more when its bytes are to leave does not send them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest
import uvloop

from leasehold.domain.outcome import Accepted, Unknown
from leasehold.gateway.errors import GatewayMisconfigured, TrustEnded
from leasehold.gateway.http.checked_socket import Call, CheckedSocket
from tests.support.certificates import self_signed
from tests.support.http_gateways import RawServer, http_gateway, make_submission

LARGE_BODY = bytes(32_000_000)  # far more than the kernel buffers on a local connection
large = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


class Trust:
    """The permit of a call, which a test ends."""

    def __init__(self, *, has_ended=False):
        self.has_ended = has_ended

    def __call__(self):
        return not self.has_ended


async def answer(_reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


@pytest.fixture(params=["http", pytest.param("https", marks=pytest.mark.program("openssl"))])
def tls(request, tmp_path, monkeypatch):
    """The server's TLS context, or None."""
    if request.param == "http":
        return None
    certificate = self_signed(tmp_path, "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@contextlib.asynccontextmanager
async def byte_counter(tls, began):
    """A server that only reads. Yields its URL and the bytes that it got, per connection."""
    received, readers = [], set()

    async def read(reader, writer):
        readers.add(asyncio.current_task())
        number = len(received)
        received.append(0)
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                received[number] += len(chunk)
                await began(number)
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/", received
        await asyncio.gather(*readers)


async def nothing(_number):
    pass


@pytest.mark.parametrize("what", ["submit", "lookup"])
async def test_call_that_is_no_longer_trusted_sends_no_byte(tls, what):
    async with (
        byte_counter(tls, nothing) as (url, received),
        http_gateway(url, guarantee="lookup", lookup_url=f"{url}{{key}}") as gateway,
    ):
        with pytest.raises(TrustEnded):
            await getattr(gateway, what)(make_submission(permit=Trust(has_ended=True)))
    assert set(received) == {0}  # aiohttp tries a GET on a second connection


async def test_call_that_is_no_longer_trusted_sends_no_byte_on_a_used_connection(tls):
    async with (
        RawServer(answer).running(tls) as server,
        http_gateway(server.url) as gateway,
    ):
        assert await gateway.submit(make_submission(permit=Trust())) == Accepted(code="200")
        with pytest.raises(TrustEnded):
            await gateway.submit(make_submission(permit=Trust(has_ended=True)))
        assert await gateway.submit(make_submission(permit=Trust())) == Accepted(code="200")
        assert (len(server.requests), server.connections) == (2, 2)


async def test_connection_forgets_the_trust_of_an_earlier_call(tls):
    async with (
        RawServer(answer).running(tls) as server,
        http_gateway(server.url) as gateway,
    ):
        earlier = Trust()
        await gateway.submit(make_submission(permit=earlier))
        earlier.has_ended = True
        assert await gateway.submit(make_submission(permit=Trust())) == Accepted(code="200")
        assert (len(server.requests), server.connections) == (2, 1)


@pytest.mark.parametrize(
    "send", [lambda one: one.send(b"x"), lambda one: one.sendmsg([b"x"])], ids=["send", "sendmsg"]
)
def test_socket_checks_each_way_in_which_event_loops_send(send):
    """Python 3.11 uses `send` only; newer ones use both, depending on the size of a request."""
    ours, theirs = socket.socketpair()
    checked = CheckedSocket(ours.family, ours.type, ours.proto, fileno=ours.detach())
    with checked, theirs:
        checked.call = Call(Trust())
        assert send(checked) == 1
        checked.call = Call(Trust(has_ended=True))
        with pytest.raises(ConnectionAbortedError):
            send(checked)
        assert checked.call.is_refused
        assert not checked.call.has_sent
        checked.close()
        assert theirs.recv(10) == b"x"
        assert theirs.recv(10) == b""


@large
async def test_body_is_cut_off_where_trust_ends(tls):
    trust = Trust()

    async def end_trust(_number):
        trust.has_ended = True

    async with byte_counter(tls, end_trust) as (url, received), http_gateway(url) as gateway:
        sent = make_submission(payload=None, body=LARGE_BODY, permit=trust)
        outcome = await gateway.submit(sent)
    assert isinstance(outcome, Unknown)
    assert 0 < received[0] < len(LARGE_BODY)


@large
async def test_body_that_stays_trusted_arrives_whole(tls):
    async with (
        RawServer(answer).running(tls) as server,
        http_gateway(server.url) as gateway,
    ):
        sent = make_submission(payload=None, body=LARGE_BODY, permit=Trust())
        assert await gateway.submit(sent) == Accepted(code="200")
        assert server.requests[0].endswith(LARGE_BODY)


@pytest.mark.parametrize(
    ("guarantee", "lookup_url"), [("lookup", "http://127.0.0.1/{key}"), ("blind", None)]
)
def test_event_loop_that_bypasses_the_check_is_refused(guarantee, lookup_url):
    async def open_on_uvloop():
        async with http_gateway("http://127.0.0.1/", guarantee=guarantee, lookup_url=lookup_url):
            pass

    with pytest.raises(GatewayMisconfigured, match="cannot run on uvloop"):
        uvloop.run(open_on_uvloop())


def test_gateway_that_needs_no_check_runs_on_any_event_loop():
    async def submit_on_uvloop():
        async with RawServer(answer).running() as server, http_gateway(server.url) as gateway:
            return await gateway.submit(make_submission(permit=Trust()))

    assert uvloop.run(submit_on_uvloop()) == Accepted(code="200")
