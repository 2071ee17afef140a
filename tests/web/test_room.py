"""Room: who waits or listens takes none from who hands something in."""

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
    """The API, which answers one request at a time and lets one wait."""
    outbox.publish("sms")
    settings = WebSettings(instance_id="test", log_level="warning", requests_max=1, waits_max=1)
    async with serve(database, settings) as api:
        yield api


async def test_waits_and_streams_leave_room_for_requests_and_are_bounded_themselves(narrow, outbox):
    client = await narrow.client("ingest", "read")
    async with listening(client):
        href = (await client.post("/v1/intents", json=SMS)).json()["href"]
        waiting = asyncio.create_task(client.get(f"{href}?wait_seconds=30"))
        await until(lambda: narrow.service.room.is_full_of_waits)
        response = await client.get(f"{href}?wait_seconds=30")
        problem(response, 503, "overloaded")
        assert response.headers["retry-after"]
        # What is handed in is accepted, and told as it stands where nobody more may wait.
        response = await client.post("/v1/intents?wait_seconds=30", json=SMS)
        assert (response.status_code, response.json()["intent"]["status"]) == (201, "pending")
        for path in ("/readyz", "/metrics", href):
            assert (await client.get(path)).status_code == 200
        outbox.complete(outbox.claim(batch_size=2))
        assert (await waiting).json()["status"] == "accepted"
    await until(lambda: not narrow.service.room.requests)
    assert not narrow.service.room.is_full_of_waits


async def test_one_request_too_many_is_told_to_come_again(narrow, monkeypatch):
    client = await narrow.client("ingest", "read")
    going_on = asyncio.Event()
    read_supervisor = narrow.service.stores.reader.read_supervisor

    async def slow():
        await going_on.wait()
        return await read_supervisor()

    monkeypatch.setattr(narrow.service.stores.reader, "read_supervisor", slow)
    first = asyncio.create_task(client.get("/v1/stats"))
    await until(lambda: narrow.service.room.requests)
    problem(await client.post("/v1/intents", json=SMS), 503, "overloaded")
    assert (await client.get("/readyz")).status_code == 200
    going_on.set()
    assert (await first).status_code == 200
    assert (await client.post("/v1/intents", json=SMS)).status_code == 201
