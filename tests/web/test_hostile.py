"""Whatever is sent: it is refused or ignored, nothing is written, and nothing grows."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from leasehold.web import protocol
from tests.support.api import make_token, serve
from tests.support.database import Database
from tests.support.hostile_requests import (
    GOOD,
    HOST,
    JSON,
    TOKEN,
    all_hostile,
    chunked,
    head,
    posting,
    trailed,
)
from tests.support.outbox import Outbox
from tests.support.serve_process import Serving

CASES = list(all_hostile())
MEMORY_MAX = 300 * 2**20
WAIT_SECONDS = 30
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Victim:
    """A server process that is sent everything, and its database."""

    def __init__(self, database, serving, address):
        self.serving = serving
        self._address = address
        self._token = serving.token.encode()
        self._connection = psycopg.connect(database.url, autocommit=True)

    def connect(self):
        connection = socket.create_connection(self._address, timeout=WAIT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def filled(self, data):
        return data.replace(b"{token}", self._token)

    def send(self, data):
        """Send it and nothing more; what came back until the server hung up or answered."""
        with self.connect() as connection:
            answer = b""
            try:
                connection.sendall(self.filled(data))
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    answer += piece
            except OSError:
                pass
            return answer

    def written(self):
        return self._connection.execute("SELECT count(*) FROM leasehold.intents").fetchone()[0]

    def memory(self):
        """The most memory that it ever had."""
        status = Path(f"/proc/{self.serving.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

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


def statuses(answer):
    return [int(one) for one in STATUS.findall(answer)]


def test_there_are_enough_of_them():
    assert len(CASES) >= 500
    assert len({one.name for one in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_request_is_refused_and_writes_nothing(victim, case):
    before = victim.written()
    answer = victim.send(case.data)
    found = statuses(answer)
    assert all(400 <= status < 500 for status in found), answer[:500]
    if found:
        assert b"application/problem+json" in answer
    assert victim.written() == before


def test_same_requests_byte_by_byte_or_all_at_once_change_nothing(victim):
    before = victim.written()
    small = [one for one in CASES if len(one.data) < 300][::7]
    with ThreadPoolExecutor(16) as pool:
        for found in pool.map(lambda one: drip(victim, one.data), small):
            assert all(400 <= status < 500 for status in statuses(found)), found
        for found in pool.map(lambda one: victim.send(one.data), CASES[::5]):
            assert all(400 <= status < 500 for status in statuses(found)), found
    assert victim.written() == before


def drip(victim, data):
    with victim.connect() as connection:
        answer = b""
        try:
            for byte in victim.filled(data):
                connection.send(bytes([byte]))
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:
            pass
        return answer


def test_one_request_inside_another_is_never_two(victim):
    """Whatever a proxy makes of them, each of these is one request, or none."""
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
    for data in outer:
        assert len(statuses(victim.send(data))) == 1, data
        split = data.index(b"\r\n\r\n") + 4
        with victim.connect() as connection:  # the body comes later than the head
            connection.sendall(victim.filled(data[:split]))
            time.sleep(0.02)
            try:
                connection.sendall(victim.filled(data[split:]))
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            except OSError:
                continue
        assert len(statuses(answer)) == 1, answer
    assert victim.written() == before


def test_requests_one_after_the_other_on_one_connection_are_each_answered(victim):
    before = victim.written()
    assert statuses(victim.send(posting(GOOD) * 3)) == [201, 201, 201]
    # What follows is no request, or a refused one; what came before it is answered.
    refused = [
        b"garbage\r\n\r\n",
        posting(GOOD, b"Host: other\r\n"),
        posting(GOOD, b"X: y\r\n" * 120),
    ]
    for one in refused:
        assert statuses(victim.send(posting(GOOD) + one + posting(GOOD)))[:1] == [201]
    assert victim.written() == before + 3 + len(refused)


def test_odd_but_proper_requests_are_taken(victim):
    before = victim.written()
    odd = [
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
    for data in odd:
        assert statuses(victim.send(data)) == [201], data
    assert victim.written() == before + len(odd)


def test_client_that_waits_to_be_asked_for_its_body_is_asked_only_where_it_is_wanted(victim):
    for length, expected in ((len(GOOD), 100), (10**9, 413)):
        request = head(
            b"POST /v1/intents",
            JSON,
            b"Content-Length: %d\r\n" % length,
            b"Expect: 100-continue\r\n",
        )
        with victim.connect() as connection:
            connection.sendall(victim.filled(request))
            assert statuses(connection.recv(65536))[0] == expected


def test_memory_stays_bounded_however_much_is_sent(victim):
    large = [
        posting(b'{"target":"sms","payload":[' + b"{}," * 400_000 + b"}"),
        posting(b'{"target":"nowhere","payload":[' + b'"",' * 400_000 + b'""]}'),
        posting(b'{"target":"sms","payload":"' + b"x" * 1_400_000),
        head(b"POST /v1/intents", JSON, b"Content-Length: 500000000\r\n") + b"x" * 3_000_000,
        head(b"POST /v1/intents:batch", JSON, b"Content-Length: 8000000\r\n") + b"x" * 8_000_000,
        # Also of those who have no token.
        head(b"POST /v1/intents", JSON)[:-2] + trailed(b"X: y\r\n" * 2_000_000),
        b"GET /healthz HTTP/1.1\r\n" + HOST + trailed(b"X: " + b"y" * 40_000_000),
    ]
    with ThreadPoolExecutor(16) as pool:
        for answer in pool.map(victim.send, large * 4):
            # So much at once may also be told to come again.
            assert all(400 <= status < 500 or status == 503 for status in statuses(answer)), answer
    assert victim.memory() < MEMORY_MAX
    assert statuses(victim.send(head(b"GET /healthz"))) == [200]


@pytest.fixture
async def slow_api(database, outbox, monkeypatch):
    """A server with little patience."""
    outbox.publish("sms")
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "LINGER_SECONDS"):
        monkeypatch.setattr(protocol, name, 0.1)
    async with serve(database) as api:
        yield api


async def answer_to(api, data, *more):
    """Send pieces of a request, and nothing more, without hanging up."""
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    async with asyncio.timeout(WAIT_SECONDS):
        writer.write(data)
        for piece in more:
            await writer.drain()
            writer.write(piece)
        try:
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()


async def test_slow_client_is_not_waited_for(slow_api):
    token = make_token(slow_api.database, "ingest").encode()
    await slow_api.service.tokens.step()
    request = posting(GOOD).replace(b"{token}", token)
    assert await answer_to(slow_api, b"") == b""
    assert statuses(await answer_to(slow_api, b"POST /v1/in")) == [408]
    assert statuses(await answer_to(slow_api, request[:-40])) == [408]
    assert statuses(await answer_to(slow_api, request[:-10])) == [408]
    # Nor on a connection that has been served before.
    assert statuses(await answer_to(slow_api, request + request[:-10])) == [201, 408]
    assert statuses(await answer_to(slow_api, request + request[:20])) == [201, 408]
    assert slow_api.intents() == 2


async def test_rest_of_a_body_that_was_refused_is_not_waited_for_either(slow_api):
    token = make_token(slow_api.database, "ingest").encode()
    await slow_api.service.tokens.step()
    huge = head(b"POST /v1/intents", JSON, b"Content-Length: 1000000000\r\n").replace(
        b"{token}", token
    )
    assert statuses(await answer_to(slow_api, huge, b"x" * 100)) == [413]


async def test_client_that_does_not_read_is_hung_up_on(slow_api, monkeypatch):
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.1)
    token = make_token(slow_api.database, "read").encode()
    await slow_api.service.tokens.step()
    url = urlsplit(slow_api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1024)
    asked = b"GET /openapi.json HTTP/1.1\r\n" + HOST + TOKEN.replace(b"{token}", token) + b"\r\n"
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            while not writer.is_closing():
                writer.write(asked * 20)
                await writer.drain()
        except OSError:
            pass
    writer.close()
    del reader


async def test_half_a_request_behind_another_is_not_waited_for(slow_api):
    """Its turn comes when nobody watches the clock any more."""
    token = make_token(slow_api.database, "ingest", "read").encode()
    await slow_api.service.tokens.step()
    request = posting(GOOD).replace(b"{token}", token)
    waiting = request.replace(b"POST /v1/intents", b"POST /v1/intents?wait_seconds=0.5", 1)
    assert statuses(await answer_to(slow_api, waiting + request[:-10])) == [201]
    assert slow_api.service.room.requests == 0
    assert slow_api.intents() == 1


async def test_what_was_refused_before_it_was_a_request_is_told_and_counted(
    database, outbox, monkeypatch
):
    outbox.publish("sms")
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.1)
    told = []
    async with serve(database) as api:
        monkeypatch.setattr(api.service.access_log, "write", told.append)
        token = make_token(database, "ingest", name="slow").encode()
        await api.service.tokens.step()
        slow = posting(GOOD)[:-5].replace(b"{token}", token)
        sent = [
            (b"garbage\r\n\r\n", ("other", "", 400, "")),
            (b"GET /v1/stats?x=hush HTTP/1.1\r\nX Y: z\r\n\r\n", ("GET", "/v1/stats", 400, "")),
            (b"GET /v1/stats HTTP/1.1\r\n\r\n", ("GET", "/v1/stats", 400, "")),
            (b"GET /v1/stats HTTP/1.1\r\nX: y", ("GET", "/v1/stats", 408, "")),
            (b"GET /long HTTP/1.1\r\nX: " + b"y" * 40_000, ("GET", "/long", 431, "")),
            (slow, ("POST", "/v1/intents", 408, "slow")),
        ]
        for data, expected in sent:
            answer = await answer_to(api, data)
            assert statuses(answer) == [expected[2]]
            line = told.pop()
            assert (line.method, line.path, line.status, line.token) == expected
            assert line.client == "127.0.0.1"
            assert line.request_id.encode() in answer
            assert not told
        monkeypatch.setattr(protocol.BoundedProtocol, "connections_max", 0)
        assert statuses(await answer_to(api, b"")) == [503]
        assert told.pop().status == 503
        counted = api.service.metrics.exposition().decode()
        for method, status in (("other", 400), ("GET", 431), ("GET", 408), ("other", 503)):
            assert f'method="{method}",route="unknown",status="{status}"' in counted
        assert 'method="POST",route="/v1/intents",status="408"' in counted


async def test_trailer_is_no_header(slow_api):
    """Behind a request that waits its turn it would come before anybody has read the headers."""
    token = make_token(slow_api.database, "ingest").encode()
    await slow_api.service.tokens.step()
    first = posting(GOOD).replace(b"{token}", token)
    second = b"POST /v1/intents HTTP/1.1\r\nConnection: close\r\n" + HOST + JSON
    trailer = TOKEN.replace(b"{token}", token) + b"\r\n"
    answer = await answer_to(slow_api, first + second + trailed(trailer))
    assert statuses(answer) == [201, 401]
    assert slow_api.intents() == 1


async def test_one_connection_too_many_is_refused(slow_api, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 30)
    monkeypatch.setattr(protocol.BoundedProtocol, "connections_max", 2)
    url = urlsplit(slow_api.url)
    kept = [await asyncio.open_connection(url.hostname, url.port) for _ in range(2)]
    await asyncio.sleep(0)
    assert statuses(await answer_to(slow_api, b"")) == [503]
    for _, writer in kept:
        writer.close()
