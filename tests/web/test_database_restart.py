"""`leasehold serve` after a restart of its PostgreSQL: it does not use a connection of before."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.sandbox import Sandbox
from tests.support.restartable_engine import restartable_engine
from tests.support.serve_process import Serving, eventually

SMS = {"target": "sms", "payload": {"to": "+41"}}
# More than the reader's pool, so that each of its connections is open.
READERS = 20


@pytest.fixture
async def engine(tmp_path):
    async with Sandbox(seed=1) as sandbox:
        with restartable_engine(sandbox, tmp_path) as engine:
            yield engine


@pytest.fixture
def serving(engine, tmp_path):
    one = Serving(engine.database, tmp_path / "serve.log", "--no-execute")
    yield one
    one.close()


async def is_ready(client):
    return (await client.get("/readyz")).status_code == 200


async def is_unavailable(client):
    return (await client.get("/readyz")).status_code == 503


async def test_every_request_after_readyz_reports_ready_is_answered(engine, serving):
    engine.publish("sms")
    async with await serving.client() as client:
        accepted = (await client.post("/v1/intents", json=SMS)).json()["href"]
        await asyncio.gather(*(client.get(accepted) for _ in range(READERS)))
        engine.stop_server()
        await eventually(lambda: is_unavailable(client))
        await engine.start_server()
        await eventually(lambda: is_ready(client))
        answers = [await client.post("/v1/intents", json=SMS) for _ in range(3)]
        answers += await asyncio.gather(*(client.get(accepted) for _ in range(READERS)))
    assert [one.status_code for one in answers] == [201] * 3 + [200] * READERS


async def test_read_without_a_database_says_that_nothing_was_changed(engine, serving):
    engine.publish("sms")
    async with await serving.client() as client:
        accepted = (await client.post("/v1/intents", json=SMS)).json()["href"]
        engine.stop_server()
        await eventually(lambda: is_unavailable(client))
        read, written = await asyncio.gather(
            client.get(accepted), client.post("/v1/intents", json=SMS)
        )
    assert (read.status_code, read.json()["code"]) == (503, "database_unavailable")
    assert read.json()["detail"] == "The database did not answer. Nothing was changed: try again."
    assert written.status_code == 503
    assert written.json()["detail"] == "Outcome unknown. Retry with the same idempotency key."
