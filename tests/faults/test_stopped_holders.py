"""A deploy: holders are stopped under load and replaced. Nothing that was not sent is in doubt.

The gateway notes what it receives, so that each intent in doubt can be compared with it. `lookup`
and `blind` calls are begun before they are made, and a stream's heads by the claim. What was begun
and not sent is not begun any more when its holder has stopped.
"""

from __future__ import annotations

import asyncio
import os
import random
from signal import SIGTERM

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until
from tests.support.held_gateway import HeldGateway

# A long run has more.
STOPS = int(os.environ.get("TEST_STOPS", "3"))
SLOTS = 20
STOPPED_WITHIN_SECONDS = 0.3
# No lease ends by itself: whoever stops releases it.
SETTINGS = ROW_LEASE_SETTINGS | {
    "stream_claim_seconds": "60",
    "concurrency": str(SLOTS),
}
CLASSES = [
    (scope, guarantee)
    for scope in ("item", "stream", "cluster")
    for guarantee in ("lookup", "blind")
]
DOUBTED = """
SELECT i.submission_key::text AS key, p.first_tried_at, p.attempt_count, p.begun_at
  FROM leasehold.outbox_pending p JOIN leasehold.intents i USING (intent_id)
 WHERE p.begun_at IS NOT NULL OR p.last_state = 'IN_DOUBT' OR p.first_tried_at IS NOT NULL
"""
SUBMISSION_KEYS = (
    "SELECT submission_key::text AS key FROM leasehold.intents WHERE intent_id = ANY (%s)"
)


@pytest.fixture
async def gateway():
    async with HeldGateway().running() as gateway:
        gateway.may_answer.set()
        gateway.answer_seconds = 0.05
        yield gateway


def publish(engine, gateway, scope, guarantee, **terms):
    engine.publish(
        "bank",
        guarantee,
        **{
            "scope": scope,
            "concurrency": SLOTS,
            "call_timeout_seconds": 25,
            "lease_seconds": 60,
            "quarantine_seconds": 120,
            "gateway": gateway.terms(guarantee),
        }
        | terms,
    )


def start(engine, **more):
    return engine.worker(**(SETTINGS | more))


def enqueue(engine, count):
    entries = [
        {"target": "bank", "payload": one, "stream": f"s{one % (2 * SLOTS)}"}
        for one in range(count)
    ]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


async def stop(worker):
    worker.send(SIGTERM)
    assert await worker.ended() == 0


def assert_only_sent_calls_are_in_doubt(engine, gateway):
    for row in engine.database.execute(DOUBTED):
        assert row["key"] in gateway.received, row


async def stop_under_load(engine, gateway, stops):
    """Stop workers at random moments while they have work; return all ids."""
    ids = []
    for _ in range(stops):
        ids += enqueue(engine, 10 * SLOTS)
        before = gateway.received.total()
        worker = start(engine)
        await until(lambda before=before: gateway.received.total() > before)
        await asyncio.sleep(random.uniform(0, STOPPED_WITHIN_SECONDS))
        await stop(worker)
        assert_only_sent_calls_are_in_doubt(engine, gateway)
    return ids


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
async def test_stop_under_load_puts_nothing_in_doubt(engine, gateway, scope, guarantee):
    """Calls take far less time than a shutdown, so each has its result when the worker ends."""
    publish(engine, gateway, scope, guarantee)
    ids = await stop_under_load(engine, gateway, STOPS)
    assert engine.database.execute(DOUBTED) == []
    gateway.answer_seconds = 0.0  # for the backlog of a long run
    worker = start(engine)
    await engine.until_status(ids)
    await stop(worker)
    states = {tuple(engine.outbox.states(one)) for one in ids}
    assert states == {("DISPATCHED",)}
    assert gateway.received.total() == len(gateway.received) == len(ids)


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
async def test_stop_that_cannot_wait_puts_only_sent_calls_in_doubt(
    engine, gateway, scope, guarantee
):
    """The gateway does not answer, and has room for some of the connections only."""
    gateway.may_answer.clear()
    publish(engine, gateway, scope, guarantee)
    enqueue(engine, 2 * SLOTS)
    worker = start(engine, shutdown_seconds="0.5")
    await until(
        lambda: len(gateway.received) == SLOTS,
        context=lambda: (gateway.received.total(), worker.log.read_text()),
    )
    await stop(worker)
    assert_only_sent_calls_are_in_doubt(engine, gateway)
    successor = start(engine)
    await until(lambda: len(gateway.received) == 2 * SLOTS)
    keys = [row["key"] for row in engine.database.execute(DOUBTED)]
    assert set(keys) == set(gateway.received)
    assert set(gateway.received.values()) == {1}
    await stop(successor)


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
@pytest.mark.parametrize("point", ["before_begin", "after_begin"])
async def test_calls_that_were_begun_and_not_sent_are_not_begun_after_a_stop(
    engine, gateway, scope, guarantee, point
):
    publish(engine, gateway, scope, guarantee)
    ids = enqueue(engine, 5)
    point = "after_claim" if scope == "stream" else point  # the claim has begun the heads
    worker = start(engine, fault=f"{point}:wait", shutdown_seconds="0.5")
    await worker.logged("fault")
    await stop(worker)
    assert engine.database.execute(DOUBTED) == []
    assert not gateway.received
    start(engine)
    await engine.until_status(ids)
    assert {tuple(engine.outbox.states(one)) for one in ids} == {("DISPATCHED",)}
