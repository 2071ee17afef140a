"""Hostile requests through real sockets: refused, nothing written, and memory stays bounded.

What only the proxy bounds is tested in tests/deploy/test_haproxy_limits.py.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from leasehold.web import request_context
from leasehold.web.middleware import Middleware
from leasehold.web.request_context import PIECE_BYTES, PIECES_MIN
from leasehold.web.service import WebSettings
from tests.support.api import make_token, serve
from tests.support.database import Database
from tests.support.engine import until
from tests.support.hostile_requests import (
    GOOD,
    HOST,
    JSON,
    TOKEN,
    TOLERATED,
    all_hostile,
    chunked,
    head,
    posting,
    trailed,
)
from tests.support.outbox import Outbox
from tests.support.raw_http import WAIT_SECONDS, connect, exchange, statuses
from tests.support.serve_process import Serving

CASES = list(all_hostile())
MEMORY_MAX = 300 * 2**20
QUIET_SECONDS = 0.5
PIPELINE_SECONDS = 2.0
PIPELINE_MEMORY_MAX = 40 * 2**20
MANY_CONNECTIONS = 500
CONNECTION_MEMORY_MAX = 128 * 2**10


class Victim:
    """A server process that is sent everything, and its database."""

    def __init__(self, database, serving, address):
        self.serving = serving
        self.address = address
        self._token = serving.token.encode()
        self._connection = psycopg.connect(database.url, autocommit=True)

    def filled(self, data):
        return data.replace(b"{token}", self._token)

    def send(self, *pieces, **more):
        return exchange(self.address, *[self.filled(piece) for piece in pieces], **more)

    def send_case(self, case):
        quiet_seconds = QUIET_SECONDS if case.ends == "unfinished" else WAIT_SECONDS
        return self.send(case.data, quiet_seconds=quiet_seconds)

    def written(self):
        return self._connection.execute("SELECT count(*) FROM leasehold.intents").fetchone()[0]

    def requests(self, path):
        """The log lines of the requests for this path."""
        lines = self.serving.lines("request")
        return [one for one in lines if one["path"] == path.decode()]

    def memory(self, measure="VmHWM"):
        """The resident memory now (VmRSS), or the most that there ever was (VmHWM)."""
        status = Path(f"/proc/{self.serving.pid}/status").read_text()
        return int(re.search(rf"{measure}:\s+(\d+) kB", status)[1]) * 1024

    def close(self):
        self._connection.close()


@pytest.fixture(scope="module")
def victim(server, tmp_path_factory):
    database = Database(server, server.create_database())
    Outbox(database).publish("sms")
    serving = Serving(database, tmp_path_factory.mktemp("hostile") / "log", "--no-execute")
    url = urlsplit(asyncio.run(serving.url()))
    victim = Victim(database, serving, (url.hostname, url.port))
    yield victim
    victim.close()
    serving.close()
    database.close()


def test_cases_are_many_and_have_their_own_names():
    assert len(CASES) >= 500
    assert len({one.name for one in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_request_is_refused_and_writes_nothing(victim, case):
    before = victim.written()
    answer = victim.send_case(case)
    found = statuses(answer)
    assert all(400 <= status < 500 for status in found), answer[:500]
    if case.ends != "refused":
        assert answer == b""
        assert answer.is_closed == (case.ends == "closed")
    else:
        assert found, "closed without a response"
    if case.is_http:
        assert len(found) == 1
        if not case.data.startswith(b"HEAD"):
            assert b"application/problem+json" in answer
    elif found and b"application/problem+json" not in answer:
        # The server's own refusal: without a body, and the last of the connection.
        assert b"content-length: 0" in answer
        assert b"connection: close" in answer
    assert victim.written() == before


def test_hostile_requests_byte_by_byte_or_concurrently_are_refused(victim):
    before = victim.written()
    small = [one for one in CASES if len(one.data) < 300][::7]

    def drip(case):
        data = victim.filled(case.data)
        pieces = [data[at : at + 1] for at in range(len(data))]
        return exchange(victim.address, *pieces)

    with ThreadPoolExecutor(16) as pool:
        for send, cases in ((drip, small), (victim.send_case, CASES[::5])):
            for case, answer in zip(cases, pool.map(send, cases), strict=True):
                found = statuses(answer)
                assert all(400 <= status < 500 for status in found), answer
                assert (found == []) == (case.ends != "refused"), case
    assert victim.written() == before


def send_pieces(victim, pieces):
    return victim.send(*pieces, responses=2, quiet_seconds=QUIET_SECONDS, pause_seconds=0.05)


def test_request_inside_another_is_never_a_second_request(victim):
    """However a proxy reads them, each of these is one request or none."""
    inner = victim.filled(posting(GOOD))
    length = b"Content-Length: %d\r\n" % len(inner)
    outer = [
        head(b"POST /v1/intents", JSON, length) + inner,
        head(b"POST /v1/intents", JSON, length, b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n")
        + inner,
        head(b"GET /healthz", length) + inner,
        head(b"GET /healthz", length, b"Upgrade: websocket\r\n", b"Connection: upgrade\r\n")
        + inner,
        head(b"POST /v1/intents", JSON, b"Transfer-Encoding: chunked\r\n") + chunked(inner),
        head(b"POST /v1/intents", JSON, b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n")
        + b"0\r\n\r\n"
        + inner,
    ]
    before = victim.written()
    heads = [data.index(b"\r\n\r\n") + 4 for data in outer]
    apart = [(data[:at], data[at:]) for at, data in zip(heads, outer, strict=True)]
    with ThreadPoolExecutor(len(outer)) as pool:
        for sent in ([(data,) for data in outer], apart):
            answers = pool.map(partial(send_pieces, victim), sent)
            for pieces, answer in zip(sent, answers, strict=True):
                assert len(statuses(answer)) == 1, (pieces, answer)
    assert victim.written() == before


@pytest.mark.parametrize("name", TOLERATED)
def test_unusual_request_that_a_server_may_accept_is_one_request(victim, name):
    before = victim.written()
    answer = victim.send(TOLERATED[name], responses=2, quiet_seconds=QUIET_SECONDS)
    assert len(statuses(answer)) == 1
    assert victim.written() == before + statuses(answer).count(201)


def test_pipelined_requests_are_each_answered(victim):
    before = victim.written()
    assert statuses(victim.send(posting(GOOD) * 3, responses=3)) == [201, 201, 201]
    # A refused request, or none at all, in the middle: the one before it is answered.
    refused = [
        b"garbage\r\n\r\n",
        posting(GOOD, b"Idempotency-Key: a\r\n" * 2),
        posting(GOOD, b"X: y\r\n" * 120),
    ]
    for one in refused:
        answer = victim.send(posting(GOOD) + one, responses=2, quiet_seconds=QUIET_SECONDS)
        found = statuses(answer)
        assert found[0] == 201
        assert all(400 <= status < 500 for status in found[1:])
    assert victim.written() == before + 3 + len(refused)


def test_unusual_but_valid_requests_are_accepted(victim):
    before = victim.written()
    valid = [
        head(b"POST /v1/intents", JSON, b"Transfer-Encoding: chunked\r\n") + chunked(GOOD, 1),
        head(b"POST /v1/intents", JSON, b"Transfer-Encoding: chunked\r\n")
        + b"1c;name=value\r\n"
        + GOOD
        + b"\r\n0\r\nTrailer: x\r\n\r\n",
        posting(GOOD, kind=b'content-TYPE: Application/JSON; charset="UTF-8"\r\n'),
        posting(b" \r\n\t" + GOOD + b"\n"),
        posting(GOOD, b"Upgrade: h2c\r\n", b"Connection: Upgrade, HTTP2-Settings\r\n"),
        posting(GOOD, b"X-Request-Id: a b\x80\r\n"),
        posting(b'{"target":"sms","payload":' + b"[" * 99 + b"]" * 99 + b"}"),
        posting(b'{"target":"sms","payload":"\\ud83d\\ude00 \\\\u0000"}'),
        b"\r\n" + posting(GOOD),
    ]
    for data in valid:
        assert statuses(victim.send(data)) == [201], data
    assert victim.written() == before + len(valid)


def test_100_continue_is_sent_only_if_the_body_is_wanted(victim):
    for length, expected in ((len(GOOD), 100), (10**9, 413)):
        request = head(
            b"POST /v1/intents",
            JSON,
            b"Content-Length: %d\r\n" % length,
            b"Expect: 100-continue\r\n",
        )
        with connect(victim.address) as connection:
            connection.sendall(victim.filled(request))
            assert statuses(connection.recv(65536)) == [expected]


def test_memory_is_bounded_for_large_requests(victim):
    large = [
        posting(b'{"target":"sms","payload":[' + b"{}," * 400_000 + b"}"),
        posting(b'{"target":"nowhere","payload":[' + b'"",' * 400_000 + b'""]}'),
        posting(b'{"target":"sms","payload":"' + b"x" * 1_400_000),
        head(b"POST /v1/intents", JSON, b"Content-Length: 500000000\r\n") + b"x" * 3_000_000,
        head(b"POST /v1/intents:batch", JSON, b"Content-Length: 8000000\r\n") + b"x" * 8_000_000,
        # Without a token.
        head(b"POST /v1/intents", JSON)[:-2] + trailed(b"X: y\r\n" * 2_000_000),
        b"GET /healthz HTTP/1.1\r\n" + HOST + trailed(b"X: " + b"y" * 40_000_000),
    ]
    with ThreadPoolExecutor(16) as pool:
        for answer in pool.map(victim.send, large * 4):
            # So much at once may also be refused for now.
            assert all(
                400 <= status < 500 or status in {200, 503} for status in statuses(answer)
            ), answer
    assert victim.memory() < MEMORY_MAX
    assert statuses(victim.send(head(b"GET /healthz"))) == [200]


PIPELINED = {
    "health checks": b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown paths": b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n",
    "enqueues without a token": b"POST /v1/intents HTTP/1.1\r\n" + HOST + JSON + b"\r\n",
    "enqueues": posting(GOOD),
}


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not reading"])
@pytest.mark.parametrize("name", PIPELINED)
def test_memory_is_bounded_for_pipelined_requests(victim, name, reads):
    """A connection may send as many requests as it likes, but the server takes one at a time."""
    before = victim.memory("VmRSS")
    data = victim.filled(PIPELINED[name]) * 5000
    ends_at = time.monotonic() + PIPELINE_SECONDS
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(flood, victim.address, data, ends_at, reads=reads) for _ in range(4)]
        most = before
        while time.monotonic() < ends_at:
            most = max(most, victim.memory("VmRSS"))
            time.sleep(0.02)
        assert all(one.result() for one in sent)
    assert most - before < PIPELINE_MEMORY_MAX
    assert statuses(victim.send(head(b"GET /healthz"))) == [200]


@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not reading"])
def test_memory_is_bounded_for_many_connections_that_pipeline_without_a_token(victim, reads):
    """Each connection costs its buffers, and never the requests that it has sent ahead."""
    data = memoryview(b"".join(PIPELINED[name] for name in PIPELINED if name != "enqueues") * 1000)
    before = most = victim.memory("VmRSS")
    sent = Counter()
    with selectors.DefaultSelector() as selector, ExitStack() as opened:
        for _ in range(MANY_CONNECTIONS):
            connection = opened.enter_context(connect(victim.address))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        ends_at = time.monotonic() + PIPELINE_SECONDS
        while time.monotonic() < ends_at:
            for key, ready in selector.select(timeout=0.1):
                try:
                    if reads and ready & selectors.EVENT_READ:
                        key.fileobj.recv(1 << 20)
                    if ready & selectors.EVENT_WRITE:
                        sent[key.fd] += key.fileobj.send(data[sent[key.fd] % len(data) :])
                except ConnectionError:
                    # With so many connections, the server does not keep each of them.
                    selector.unregister(key.fileobj)
            most = max(most, victim.memory("VmRSS"))
    assert len(sent) == MANY_CONNECTIONS
    assert (most - before) / MANY_CONNECTIONS < CONNECTION_MEMORY_MAX
    assert statuses(victim.send(head(b"GET /healthz"))) == [200]


def flood(address, data, ends_at, *, reads):
    """Send requests as fast as they are taken; returns how many bytes were."""
    sent = 0
    with connect(address) as connection:
        reader = threading.Thread(target=read_all, args=(connection,))
        if reads:
            reader.start()
        connection.settimeout(0.2)
        while time.monotonic() < ends_at:
            with suppress(TimeoutError):
                sent += connection.send(data[sent % len(data) :])
        connection.shutdown(socket.SHUT_RDWR)
        if reads:
            reader.join()
    return sent


def read_all(connection):
    with suppress(OSError):
        while True:
            try:
                if not connection.recv(1 << 20):
                    return
            except TimeoutError:
                continue


@pytest.mark.parametrize("path", [b"/openapi.json", b"/v1/events", b"/v1/intents"])
def test_client_that_resets_its_connection_is_logged_without_a_traceback(victim, path):
    """While it is being answered, with more than the buffers hold."""
    answered = len(victim.requests(path))
    with connect(victim.address) as client:
        client.settimeout(0.2)
        with suppress(OSError):
            for _ in range(100):
                client.sendall(victim.filled(head(b"GET " + path)) * 20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asyncio.run(until(lambda: len(victim.requests(path)) > answered))
    assert statuses(victim.send(head(b"GET /healthz"))) == [200]
    log = victim.serving.log.read_text()
    assert "Traceback" not in log
    assert "request_failed" not in log


@pytest.fixture
async def impatient(database, outbox, monkeypatch):
    """A server that waits for a second only."""
    outbox.publish("sms")
    monkeypatch.setattr(request_context, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(request_context, "DRAIN_SECONDS", 1.0)
    async with serve(database, idle_seconds=1) as api:
        yield api


async def valid_request(api, name=None):
    token = make_token(api.database, "ingest", "read", name=name).encode()
    await api.service.tokens.step()
    return posting(GOOD).replace(b"{token}", token)


async def send(api, *pieces, **more):
    """Send bytes and nothing more, and wait until the server closes."""
    url = urlsplit(api.url)
    call = partial(exchange, (url.hostname, url.port), *pieces, responses=99, **more)
    return await asyncio.to_thread(call)


async def test_silent_client_is_disconnected(impatient):
    request = await valid_request(impatient)
    for data in (b"", b"POST /v1/in", request[:-40]):
        assert await send(impatient, data) == b""
    # Also on a connection that was used before.
    assert statuses(await send(impatient, request + request[:20])) == [201]
    assert impatient.intents() == 1


async def test_slow_body_is_refused(impatient):
    request = await valid_request(impatient)
    assert statuses(await send(impatient, request[:-10])) == [408]
    assert statuses(await send(impatient, request + request[:-10])) == [201, 408]
    chunks = request.replace(b"Content-Length: 28", b"Transfer-Encoding: chunked")[: -len(GOOD)]
    assert statuses(await send(impatient, chunks + b"1c\r\n" + GOOD)) == [408]
    assert impatient.intents() == 1


async def test_incomplete_request_behind_a_long_poll_is_not_waited_for(impatient):
    request = await valid_request(impatient)
    waiting = request.replace(b"POST /v1/intents", b"POST /v1/intents?wait_seconds=0.5", 1)
    assert statuses(await send(impatient, waiting + request[:-10])) == [201, 408]
    assert impatient.service.limiter.requests == 0
    assert impatient.intents() == 1


async def test_client_that_is_still_sending_gets_its_refusal(impatient, monkeypatch):
    """The rest of a body is read for a while: closing at once would destroy the response."""
    request = await valid_request(impatient)
    huge = request.replace(b"Content-Length: 28", b"Content-Length: 1000000000")
    pieces = [b"x" * 100_000] * 50
    url = urlsplit(impatient.url)
    with monkeypatch.context() as patient:
        patient.setattr(request_context, "DRAIN_SECONDS", WAIT_SECONDS)
        answer = await asyncio.to_thread(exchange, (url.hostname, url.port), huge, *pieces)
    assert statuses(answer) == [413]
    assert statuses(await send(impatient, huge)) == [413]


@pytest.fixture
def pieces_taken(monkeypatch):
    """Counts the pieces of bodies that the application takes from the server."""
    taken = []
    answer = Middleware.__call__

    async def count_and_answer(self, scope, receive, send):
        async def receive_and_count():
            message = await receive()
            taken.append(message)
            return message

        await answer(self, scope, receive_and_count, send)

    monkeypatch.setattr(Middleware, "__call__", count_and_answer)
    return taken


def in_chunks(request, body, size):
    head = request.replace(b"Content-Length: 28", b"Transfer-Encoding: chunked")[: -len(GOOD)]
    return head + chunked(body, size)


@pytest.mark.parametrize(("token", "status"), [(b"Bearer ", 400), (b"Bearer x", 401)])
async def test_body_of_many_tiny_chunks_does_not_keep_the_server_busy(
    api, pieces_taken, token, status
):
    """Each piece is a step of the event loop, also of a body that is only thrown away."""
    request = (await valid_request(api)).replace(b"Bearer ", token)
    answer = await send(api, in_chunks(request, b" " * 20_000 + GOOD, 1))
    assert statuses(answer) == [status]
    assert len(pieces_taken) < 2 * (PIECES_MIN + 20_000 // PIECE_BYTES + 2)
    assert api.intents() == 0


async def test_large_body_in_chunks_of_a_packet_is_accepted(api, pieces_taken):
    request = (await valid_request(api)).replace(HOST, HOST + b"Connection: close\r\n")
    assert statuses(await send(api, in_chunks(request, b" " * 1_200_000 + GOOD, 1100))) == [201]
    assert len(pieces_taken) > PIECES_MIN


async def test_refused_requests_are_logged_and_counted(impatient, monkeypatch):
    lines = []
    monkeypatch.setattr(
        impatient.service.access_log, "info", lambda _, **fields: lines.append(fields)
    )
    request = await valid_request(impatient, name="slow")
    long_header = b"X: " + b"y" * 33_000 + b"\r\n"
    sent = [
        (b"GET /v1/stats?x=hush HTTP/1.1\r\n\r\n", ("GET", "/v1/stats", 400, "")),
        (b"GET /x HTTP/1.1\r\n" + HOST + long_header + b"\r\n", ("GET", "/x", 431, "")),
        (request[:-5], ("POST", "/v1/intents", 408, "slow")),
    ]
    for data, expected in sent:
        answer = await send(impatient, data)
        assert statuses(answer) == [expected[2]]
        line = lines.pop()
        assert (line["method"], line["path"], line["status"], line["token"]) == expected
        assert line["client"] == "127.0.0.1"
        assert line["request_id"].encode() in answer
        assert not lines
    counted = impatient.service.metrics.exposition().decode()
    for status in (400, 431):
        assert f'method="GET",route="unknown",status="{status}"' in counted
    assert 'method="POST",route="/v1/intents",status="408"' in counted


async def test_trailer_is_not_read_as_a_header(impatient):
    """It arrives before the request in front of it is answered."""
    first = await valid_request(impatient)
    token = re.search(rb"Bearer (\S+)", first)[1]
    second = b"POST /v1/intents HTTP/1.1\r\nConnection: close\r\n" + HOST + JSON
    trailer = TOKEN.replace(b"{token}", token) + b"\r\n"
    answer = await send(impatient, first + second + trailed(trailer))
    assert statuses(answer) == [201, 401]
    assert impatient.intents() == 1


async def test_idle_connections_do_not_keep_a_newcomer_out(database):
    settings = WebSettings(instance_id="test", log_level="warning", kept_max=3)
    async with serve(database, settings, connections_max=5) as api:
        url = urlsplit(api.url)
        request = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
        kept = []
        for number in range(20):
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(request)
            answer = await asyncio.wait_for(reader.readuntil(b'"ok"}'), WAIT_SECONDS)
            assert statuses(answer) == [200]
            assert (b"connection: close" in answer) == (number >= 3)
            if number >= 3:
                assert await asyncio.wait_for(reader.read(), WAIT_SECONDS) == b""
            kept.append((reader, writer))
        # Those that were kept are served again.
        kept[0][1].write(request)
        again = await asyncio.wait_for(kept[0][0].readuntil(b'"ok"}'), WAIT_SECONDS)
        assert b"connection: close" not in again
        for _, writer in kept:
            writer.close()


async def test_connection_beyond_the_limit_is_served_when_another_ends(database, outbox):
    outbox.publish("sms")
    async with serve(database, connections_max=2) as api:
        url = urlsplit(api.url)
        kept = [await asyncio.open_connection(url.hostname, url.port) for _ in range(2)]
        request = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        for _, writer in kept:
            writer.write(request[:10])
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(request)
        answer = asyncio.create_task(reader.read())
        await asyncio.wait([answer], timeout=0.5)
        assert not answer.done()
        kept[0][1].close()
        assert statuses(await asyncio.wait_for(answer, WAIT_SECONDS)) == [200]
        for one in (kept[1][1], writer):
            one.close()
