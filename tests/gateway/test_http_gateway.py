"""What fails before the first byte is sent is retryable; what fails later is unknown."""

from __future__ import annotations

import asyncio
import socket
import zlib

import pytest

from leasehold.domain.outcome import Accepted, Deferred, Rejected, Unknown
from leasehold.gateway.errors import ForbiddenAddress
from tests.support.engine import WAIT_SECONDS, until
from tests.support.http_gateways import RawServer, abort, http_gateway, make_submission
from tests.support.passing_time import pass_time

# For a call that is not answered in full. No test waits so long: its server lets the time pass.
CALL_SECONDS = 300
PATIENT = {
    "call_timeout_seconds": CALL_SECONDS,
    "connect_timeout_seconds": 100,
    "lease_seconds": 1000,
}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


def answering(*parts, then=None):
    """Write these parts one by one, then do `then`; the connection stays open otherwise."""

    async def act(_reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then is not None:
            await then(writer)

    return act


async def leave(writer):
    writer.close()
    await writer.wait_closed()


async def reset(writer):
    await asyncio.sleep(0.05)  # let the client read what was written before
    abort(writer)


async def stay(_writer):
    await asyncio.sleep(CALL_SECONDS * 100)


async def submit(server, **changes):
    async with http_gateway(server.url, **changes) as gateway:
        return await gateway.submit(make_submission())


def assert_not_sent(outcome):
    assert isinstance(outcome, Deferred)
    assert outcome.reason == "connect"
    assert outcome.is_target_wide


async def test_refused_connection_sent_nothing():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        async with http_gateway(url) as gateway:
            assert_not_sent(await gateway.submit(make_submission()))


async def test_name_that_does_not_resolve_sent_nothing():
    async with http_gateway("http://no-such-host.invalid/") as gateway:
        assert_not_sent(await gateway.submit(make_submission()))


async def test_connection_that_is_never_accepted_sent_nothing():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        taken = [socket.create_connection(deaf.getsockname()) for _ in range(1)]
        waiting = []
        for _ in range(3):  # whatever the kernel's idea of a backlog of 0 is, fill it
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
            waiting.append(one)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        async with http_gateway(url, **PATIENT) as gateway:
            call = asyncio.create_task(gateway.submit(make_submission()))
            # The gateway may need a few steps to begin. Then the time to connect ends, and not yet
            # that of the call.
            while not call.done():
                await asyncio.sleep(0.1)
                pass_time(PATIENT["connect_timeout_seconds"] / 2)
            assert_not_sent(await call)
        for one in (*taken, *waiting):
            one.close()


async def test_tls_that_is_answered_in_clear_text_sent_nothing():
    received = []

    async def plain(reader, writer):
        received.append(await reader.read(5))
        writer.write(OK)
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, http_gateway(url) as gateway:
        assert_not_sent(await gateway.submit(make_submission()))
    assert received[0][:1] == b"\x16"  # a TLS handshake, and no request


async def test_silence_after_the_request_times_out_as_unknown():
    async with RawServer(answering(then=stay)).running() as server:
        call = asyncio.create_task(submit(server, **PATIENT))
        await until(lambda: server.requests)
        pass_time(CALL_SECONDS / 2)
        await asyncio.wait([call], timeout=0.1)
        assert not call.done(), "it had as much time again"
        pass_time(CALL_SECONDS / 2)
        outcome = await call
        assert isinstance(outcome, Unknown)
        assert outcome.reason == "timeout"
        assert b'{"amount": 1}' in server.requests[0]


@pytest.mark.parametrize(
    ("parts", "then"),
    [
        ([], leave),
        ([], reset),
        ([b"HTTP/1.1 200 OK\r\n"], leave),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n"], reset),
    ],
)
async def test_connection_closed_before_the_response_is_unknown(parts, then):
    async with RawServer(answering(*parts, then=then)).running() as server:
        outcome = await submit(server)
        assert isinstance(outcome, Unknown)
        assert outcome.reason in {"connection_lost", "response_unreadable"}
        assert len(server.requests) == 1


@pytest.mark.parametrize("then", [leave, reset])
@pytest.mark.parametrize(
    "half",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"reference": ',
        b"HTTP/1.1 422 No\r\nContent-Length: 100\r\n\r\nno",
        b"HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
async def test_incomplete_response_is_unknown_whatever_its_status(half, then):
    async with RawServer(answering(half, then=then)).running() as server:
        outcome = await submit(server)
        assert isinstance(outcome, Unknown)
        assert outcome.reason in {"connection_lost", "response_unreadable"}


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_malformed_response_is_unknown(garbage):
    async with RawServer(answering(garbage, then=leave)).running() as server:
        outcome = await submit(server)
        assert isinstance(outcome, Unknown)
        assert len(server.requests) == 1


async def test_endless_headers_are_cut_off():
    async def act(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(100_000):
            writer.write(b"X-%d: y\r\n" % number)
            await writer.drain()

    async with RawServer(act).running() as server:
        assert isinstance(await submit(server), Unknown)


@pytest.mark.parametrize(
    "head", [b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"\r\n"]
)
async def test_response_over_the_limit_is_unknown_and_not_read_completely(head):
    written = 0

    async def act(_reader, writer):
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n" + head)
        is_chunked = b"chunked" in head
        for _ in range(5000):
            writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n" if is_chunked else b"x" * 1000)
            await writer.drain()
            written += 1000
        writer.close()

    async with RawServer(act).running() as server:
        outcome = await submit(server, response_bytes_max=10_000)
        assert isinstance(outcome, Unknown)
        assert outcome.reason == "response_too_long"
    assert written < 5_000_000


async def test_response_of_exactly_the_limit_is_read():
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
    async with RawServer(answering(body)).running() as server:
        assert await submit(server, response_bytes_max=100) == Accepted(code="200")
        outcome = await submit(server, response_bytes_max=99)
        assert outcome.reason == "response_too_long"


async def test_decompression_bomb_is_cut_off():
    packed = zlib.compress(b"\0" * 50_000_000, 9)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with RawServer(answering(head.encode() + packed)).running() as server:
        outcome = await submit(server)
        assert isinstance(outcome, Unknown)
        assert b"accept-encoding: identity" in server.requests[0].lower()


async def test_slow_response_ends_with_the_call_timeout():
    async def drip(writer):
        while True:
            writer.write(b"x")
            await writer.drain()
            pass_time(CALL_SECONDS / 20)
            await asyncio.sleep(0)

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    async with RawServer(answering(head, then=drip)).running() as server:
        outcome = await submit(server, **PATIENT)
        assert isinstance(outcome, Unknown)
        assert outcome.reason == "timeout"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(status):
    async with RawServer(answering(OK)).running() as elsewhere:
        answer = f"HTTP/1.1 {status} Go\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n"
        async with RawServer(answering(answer.encode())).running() as server:
            outcome = await submit(server)
            assert isinstance(outcome, Unknown)
            assert outcome.reason == "redirect"
            assert isinstance(await submit(server, rejected_statuses=["3xx", "4xx"]), Rejected)
        assert elsewhere.connections == 0


async def test_cookie_of_a_response_does_not_change_the_next_call():
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with (
        RawServer(answering(answer)).running() as server,
        # By name: aiohttp keeps no cookies of addresses in any case.
        http_gateway(server.url.replace("127.0.0.1", "localhost")) as gateway,
    ):
        for _ in range(2):
            await gateway.submit(make_submission())
        assert b"cookie" not in server.requests[1].lower()


async def test_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with RawServer(answering(OK)).running() as server:
        assert await submit(server) == Accepted(code="200")


async def test_call_that_is_cancelled_ends_at_once_and_closes_its_connection():
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def act(reader, _writer):
        arrived.set()
        await reader.read()
        gone.set()

    async with RawServer(act).running() as server, http_gateway(server.url) as gateway:
        call = asyncio.create_task(gateway.submit(make_submission()))
        await asyncio.wait_for(arrived.wait(), WAIT_SECONDS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(gone.wait(), WAIT_SECONDS)


@pytest.mark.parametrize(
    ("guarantee", "connections"), [("keyed", 1), ("fenced", 1), ("lookup", 1), ("blind", 5)]
)
async def test_connections_are_reused_except_by_blind_gateways(guarantee, connections):
    async with RawServer(answering(OK)).running() as server:
        lookup = {"lookup_url": server.url + "{key}"} if guarantee == "lookup" else {}
        async with http_gateway(server.url, guarantee=guarantee, **lookup) as gateway:
            for _ in range(5):
                assert await gateway.submit(make_submission()) == Accepted(code="200")
        assert server.connections == connections


async def test_idle_connection_that_the_gateway_closed_is_not_reused():
    async def act(_reader, writer):
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with RawServer(act).running() as server, http_gateway(server.url) as gateway:
        for _ in range(3):
            assert await gateway.submit(make_submission()) == Accepted(code="200")
            for _ in range(20):  # steps of the event loop, in which the connection is closed
                await asyncio.sleep(0.002)
        assert server.connections == 3


async def test_http_library_never_resends_a_post():
    answers = 0

    async def once(_reader, writer):
        nonlocal answers
        answers += 1
        if answers == 1:
            writer.write(OK)
            await writer.drain()
        else:
            abort(writer)

    async with RawServer(once).running() as server, http_gateway(server.url) as gateway:
        assert await gateway.submit(make_submission()) == Accepted(code="200")
        assert isinstance(await gateway.submit(make_submission()), Unknown)
        assert len(server.requests) == 2


async def test_call_to_a_name_that_resolves_to_a_forbidden_address_is_deferred():
    async with RawServer(answering(OK)).running() as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with http_gateway(url, allow_private=False) as gateway:
            outcome = await gateway.submit(make_submission())
            answer = await gateway.lookup(make_submission())
        assert isinstance(outcome, Deferred)
        assert (outcome.reason, outcome.is_target_wide) == ("forbidden_address", True)
        assert isinstance(answer, Unknown)
        assert server.connections == 0


async def test_host_in_allow_hosts_may_resolve_to_this_machine():
    async with RawServer(answering(OK)).running() as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with http_gateway(url, allow_private=False, allow_hosts=["localhost"]) as gateway:
            assert await gateway.submit(make_submission()) == Accepted(code="200")


async def test_literal_address_is_refused_when_the_gateway_opens():
    with pytest.raises(ForbiddenAddress):
        async with http_gateway("http://127.0.0.1/", allow_private=False):
            pass


async def test_closed_gateway_sends_nothing():
    async with RawServer(answering(OK)).running() as server:
        async with http_gateway(server.url) as gateway:
            await gateway.submit(make_submission())
        assert isinstance(await gateway.submit(make_submission()), Deferred)
        assert len(server.requests) == 1
