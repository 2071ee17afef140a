"""Limits on requests: long polls and event streams take no room from enqueues."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from leasehold.web import request_context
from leasehold.web.events import LISTENERS_MAX
from leasehold.web.limiter import KeepAlive
from leasehold.web.server import CONNECTIONS_MAX
from leasehold.web.service import WebSettings
from tests.support.api import make_token, problem, serve
from tests.support.engine import until
from tests.web.test_events import listening

SMS = {"target": "sms", "payload": {}}


@pytest.fixture
async def narrow(database, outbox):
    """The API with room for one request and one long poll."""
    outbox.publish("sms")
    settings = WebSettings(instance_id="test", log_level="warning", requests_max=1, waits_max=1)
    async with serve(database, settings) as api:
        yield api


async def test_long_polls_and_streams_leave_room_for_requests_and_are_bounded(narrow, outbox):
    client = await narrow.client("ingest", "read")
    async with listening(client):
        href = (await client.post("/v1/intents", json=SMS)).json()["href"]
        waiting = asyncio.create_task(client.get(f"{href}?wait_seconds=30"))
        await until(lambda: narrow.service.limiter.is_full_of_waits)
        response = await client.get(f"{href}?wait_seconds=30")
        problem(response, 503, "overloaded")
        assert response.headers["retry-after"]
        # An enqueue is accepted, and answered at once if there is no room to wait.
        response = await client.post("/v1/intents?wait_seconds=30", json=SMS)
        assert (response.status_code, response.json()["intent"]["status"]) == (201, "pending")
        for path in ("/readyz", "/metrics", href):
            assert (await client.get(path)).status_code == 200
        outbox.complete(outbox.claim(batch_size=2))
        assert (await waiting).json()["status"] == "accepted"
    await until(lambda: not narrow.service.limiter.requests)
    assert not narrow.service.limiter.is_full_of_waits


def test_connection_counts_until_it_would_be_closed_for_silence():
    now = 0.0
    keep_alive = KeepAlive(2, idle_seconds=10, clock=lambda: now)
    assert [keep_alive.keeps(client) for client in "abca"] == [True, True, False, True]
    now = 6.0
    assert keep_alive.keeps("a")
    now = 11.0
    assert [keep_alive.keeps(client) for client in "cb"] == [True, False]


def test_kept_connections_long_polls_and_listeners_leave_room_for_others():
    settings = WebSettings()
    assert settings.kept_max + settings.waits_max + LISTENERS_MAX < CONNECTIONS_MAX


async def stalled(api, token, body, length):
    """Begin a request whose body stops after these bytes."""
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(
        f"POST /v1/intents:batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    writer.write(body)
    return reader, writer


async def test_stalled_bodies_of_one_token_leave_room_for_others(database, outbox, monkeypatch):
    outbox.publish("sms")
    monkeypatch.setattr(request_context, "BODY_SECONDS", 1000)
    settings = WebSettings(instance_id="test", log_level="error", requests_max=20)
    async with serve(database, settings) as api:
        token = make_token(database, "ingest")
        other = await api.client("ingest")
        kept = [await stalled(api, token, b"{", 100) for _ in range(20)]
        await until(lambda: api.service.limiter.requests == 2)
        assert (await other.post("/v1/intents", json=SMS)).status_code == 201
        answers = [asyncio.create_task(reader.readline()) for reader, _ in kept]
        await until(lambda: sum(one.done() for one in answers) == 18)
        assert {one.result() for one in answers if one.done()} == {
            b"HTTP/1.1 503 Service Unavailable\r\n"
        }
        # A body that goes on arriving is read to its end.
        for one, (_, writer) in zip(answers, kept, strict=True):
            if not one.done():
                writer.write(b" " * 99)
        await until(lambda: not api.service.limiter.requests)
        again = await stalled(api, token, b"{", 100)
        await until(lambda: api.service.bodies._slow.total() == 1)
        for _, writer in (*kept, again):
            writer.close()


async def test_large_stalled_bodies_of_one_token_leave_room_for_others(api, monkeypatch):
    monkeypatch.setattr(request_context, "BODY_SECONDS", 1000)
    api.service.bodies._bytes_max = 1024 * 1024
    token = make_token(api.database, "ingest")
    other = await api.client("ingest")
    size = 400 * 1024
    kept = [await stalled(api, token, b" " * size, size + 1) for _ in range(5)]
    await until(lambda: api.service.bodies._bytes.total() == size)
    large = {"intents": [SMS | {"payload": "x" * 300_000}]}
    answer = await other.post("/v1/intents:batch", json=large)
    assert answer.status_code == 200, answer.text
    for _, writer in kept:
        writer.close()
    await until(lambda: not api.service.bodies._bytes)


async def test_one_request_too_many_is_refused_with_retry_after(narrow, monkeypatch):
    client = await narrow.client("ingest", "read")
    proceed = asyncio.Event()
    read_supervisor = narrow.service.stores.reader.read_supervisor

    async def slow():
        await proceed.wait()
        return await read_supervisor()

    monkeypatch.setattr(narrow.service.stores.reader, "read_supervisor", slow)
    first = asyncio.create_task(client.get("/v1/stats"))
    await until(lambda: narrow.service.limiter.requests)
    problem(await client.post("/v1/intents", json=SMS), 503, "overloaded")
    assert (await client.get("/readyz")).status_code == 200
    proceed.set()
    assert (await first).status_code == 200
    assert (await client.post("/v1/intents", json=SMS)).status_code == 201
