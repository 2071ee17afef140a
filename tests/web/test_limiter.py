"""Limits on requests: long polls and event streams take no room from enqueues."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.web.service import WebSettings
from tests.support.api import problem, serve
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
