"""Event streams: every event once, and a slow listener affects no other."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from uuid import UUID

import jsonschema_rs
import pytest

from leasehold.store.postgres.readers import event_cursor
from leasehold.web import events
from tests.support.api import make_token, problem, serve
from tests.support.engine import until

WAIT_SECONDS = 30


class Listening:
    """A client of the event stream."""

    def __init__(self, response):
        self.response = response
        self.last_event_id = None
        self._lines = response.aiter_lines()

    async def block(self):
        """The next block of lines as a dict; remembers the last id, as a browser does."""
        found = {}
        async with asyncio.timeout(WAIT_SECONDS):
            async for line in self._lines:
                if not line:
                    return found
                name, _, value = line.partition(":")
                found[name] = value.strip()
                if name == "id":
                    self.last_event_id = found["id"]
        return None

    async def event(self):
        while (block := await self.block()) is not None:
            if "data" in block:
                return json.loads(block["data"])
        return None

    async def events(self, count):
        return [await self.event() for _ in range(count)]


@asynccontextmanager
async def listening(client, last_event_id=None, **query):
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with client.stream("GET", "/v1/events", headers=headers, params=query) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        one = Listening(response)
        assert "id" in await one.block()
        yield one


def finish(outbox, count, target="sms"):
    """Write `count` ledger rows, each in its own transaction; returns the intent ids."""
    written = []
    for intent_id in outbox.enqueue(count, target=target):
        outbox.complete(outbox.claim(batch_size=1, targets=[target]))
        written.append(str(intent_id))
    return written


async def test_events_are_sent_when_they_are_written(api, outbox):
    client = await api.client("read")
    async with listening(client) as one:
        written = finish(outbox, 3)
        seen = await one.events(3)
    assert [event["intent_id"] for event in seen] == written
    assert {(event["state"], event["target"], event["attempt_no"]) for event in seen} == {
        ("DISPATCHED", "sms", 1)
    }
    assert not any("token" in event for event in seen)


async def test_data_of_an_event_is_what_the_openapi_document_says(api, outbox, openapi):
    attempt = {"$ref": "#/components/schemas/Attempt", "components": openapi["components"]}
    async with listening(await api.client("read")) as one:
        finish(outbox, 1)
        event = await one.event()
    assert event["target"] == "sms"
    jsonschema_rs.validate(attempt, event)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(attempt, event | {"state": "GONE"})


async def test_interrupted_stream_resumes_at_another_server_without_loss(database, outbox):
    outbox.publish("sms")
    token = make_token(database, "read")
    seen: dict[str, list[str]] = {"a": [], "b": []}
    last: dict[str, str] = {}
    written: list[str] = []
    for round_number in range(3):
        async with serve(database) as api:  # it stops during both streams
            client = await api.with_token(token)
            async with (
                listening(client, last.get("a")) as a,
                listening(client, last.get("b")) as b,
            ):
                written += finish(outbox, 4)
                # One listener reads the whole round, the other falls behind.
                while seen["a"] != written:
                    seen["a"].append((await a.event())["intent_id"])
                for _ in range(round_number):
                    seen["b"].append((await b.event())["intent_id"])
                last = {"a": a.last_event_id, "b": b.last_event_id}
        written += finish(outbox, 2)  # while no server runs
    async with serve(database) as api:
        client = await api.with_token(token)
        for name in seen:
            async with listening(client, last[name]) as one:
                while len(seen[name]) < len(written):
                    seen[name].append((await one.event())["intent_id"])
    assert seen == {"a": written, "b": written}


async def test_all_listeners_share_one_reader(api, outbox, monkeypatch):
    client = await api.client("read")
    reads = 0
    read_events = api.service.stores.reader.read_events

    async def counted(after, limit):
        nonlocal reads
        found = await read_events(after, limit)
        reads += bool(found)
        return found

    monkeypatch.setattr(api.service.stores.reader, "read_events", counted)
    monkeypatch.setattr(events, "POLL_SECONDS", 0.3)
    async with asyncio.TaskGroup() as group:

        async def listen():
            async with listening(client) as one:
                joined.release()
                return [event["intent_id"] for event in await one.events(3)]

        joined = asyncio.Semaphore(0)
        listeners = [group.create_task(listen()) for _ in range(20)]
        for _ in listeners:
            await joined.acquire()
        written = finish(outbox, 3)
    assert all(one.result() == written for one in listeners)
    # Twenty readers would find events at least twenty times.
    assert 1 <= reads <= len(written)


async def test_slow_listener_catches_up_and_misses_nothing(api, outbox, monkeypatch):
    monkeypatch.setattr(events, "BUFFER_MAX", 2)
    monkeypatch.setattr(events, "PAGE", 5)
    client = await api.client("read")
    async with listening(client) as one:
        written = finish(outbox, 30)
        seen = [event["intent_id"] for event in await one.events(30)]
        assert seen == written
        # It has caught up.
        written = finish(outbox, 1)
        assert [event["intent_id"] for event in await one.events(1)] == written


async def test_listener_gets_only_events_of_its_targets(api, outbox):
    outbox.publish("mail")
    everything = await api.client("read")
    restricted = await api.client("read", targets=["mail"])
    async with listening(everything, target="mail") as asked, listening(restricted) as allowed:
        finish(outbox, 2)
        written = finish(outbox, 2, target="mail")
        for one in (asked, allowed):
            assert [event["intent_id"] for event in await one.events(2)] == written


async def test_quiet_stream_sends_keep_alives_with_a_newer_cursor(api, outbox, monkeypatch):
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    outbox.publish("mail")
    client = await api.client("read")
    async with listening(client, target="mail") as one:
        began_at = one.last_event_id
        finish(outbox, 1)
        while one.last_event_id == began_at:
            block = await one.block()
            assert block is not None
            assert "data" not in block


async def test_cursor_of_another_database_is_refused(api):
    for place in ("x", "1", event_cursor(10**12, UUID(int=0), 1), "x" * 100):
        response = await api.get("/v1/events", headers={"Last-Event-ID": place})
        problem(response, 422, "invalid")


async def test_one_listener_too_many_is_refused(api, monkeypatch):
    monkeypatch.setattr(events, "LISTENERS_MAX", 1)
    client = await api.client("read")
    async with listening(client):
        response = await client.get("/v1/events")
        problem(response, 503, "overloaded")
        assert response.headers["retry-after"]


async def test_concurrent_listeners_do_not_exceed_the_limit(api, monkeypatch):
    monkeypatch.setattr(events, "LISTENERS_MAX", 2)
    client = await api.client("read")
    found = []

    async def come():
        async with client.stream("GET", "/v1/events") as response:
            found.append(response.status_code)
            await everybody_came.wait()

    everybody_came = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(come())
        await until(lambda: len(found) == 10)
        everybody_came.set()
    assert sorted(found) == [200] * 2 + [503] * 8
    # Both are released, and so is a listener that is refused for another reason.
    await until(lambda: not api.service.events._admitted)
    problem(await client.get("/v1/events?last_event_id=x"), 422, "invalid")
    await until(lambda: not api.service.events._admitted)


async def test_stopping_instance_refuses_listeners(api):
    api.service.end_streams()
    document = problem(await api.get("/v1/events"), 503, "overloaded")
    assert "stopping" in document["detail"]


@pytest.mark.parametrize("is_quiet", [True, False])
async def test_stream_ends_when_its_token_is_revoked(api, outbox, monkeypatch, is_quiet):
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05 if is_quiet else 30)
    client = await api.client("read", name="leaver")
    async with listening(client) as one:
        api.database.owner_execute("SELECT leasehold.revoke_token('leaver', 'test')")
        await api.service.tokens.step()
        if not is_quiet:
            finish(outbox, 1)
        assert await one.event() is None


@pytest.mark.parametrize("goes", [True, False])
async def test_listener_is_forgotten_when_its_stream_ends(api, goes):
    client = await api.client("read")
    async with listening(client) as one:
        assert api.service.events.listeners == 1
        if not goes:
            api.service.end_streams()
            assert await one.block() is None
    await until(lambda: not api.service.events.listeners)
