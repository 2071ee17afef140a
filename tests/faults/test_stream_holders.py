"""Holders of streams that are killed, paused or slow, and enqueuers that stay open or roll back."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from tests.support.engine import until
from tests.support.stream_orders import (
    STREAM_SETTINGS,
    TARGET,
    all_of,
    effects_by_stream,
    enqueue_rounds,
)


def held_by(engine, worker_id):
    return engine.database.execute(
        "SELECT lease_name FROM leasehold.leases WHERE holder_id = %s"
        "   AND lease_name LIKE 'stream/%%' AND expires_at > clock_timestamp()",
        [worker_id],
    )


async def test_order_survives_kills_pauses_and_enqueuers_that_stay_open(engine):
    """Four instances, 200 streams; the gateway's record is exactly the accepted sequence."""
    chance = random.Random(19)
    engine.publish(TARGET, scope="stream", retry={"first_seconds": 0.05, "attempts_max": 20})
    engine.sandbox.set_faults(latency_ms=5, jitter=1, lost_response_rate=0.02, seed=3)
    # A transaction that enqueued and stays open, and one that rolls back.
    open_one, rolled_back = (engine.database.session("ingest") for _ in range(2))
    workers = [engine.worker(**STREAM_SETTINGS) for _ in range(4)]
    enqueue = "SELECT leasehold.enqueue_intent(%s, '{}', NULL, %s::jsonb) AS intent_id"
    ids = enqueue_rounds(engine, streams=200, rounds=2)
    open_one.run("BEGIN")
    [row] = open_one.run(enqueue, [TARGET, '{"stream": "s0"}'])
    rolled_back.run("BEGIN")
    rolled_back.run(enqueue, [TARGET, '{"stream": "s1"}'])
    await asyncio.sleep(0.5)
    rolled_back.run("ROLLBACK")
    for _ in range(2):
        victim = chance.choice(workers)
        victim.send(signal.SIGKILL)
        workers.remove(victim)
        paused = chance.choice(workers)
        paused.send(signal.SIGSTOP)
        # Not into s0: the open enqueuer holds its row.
        more = enqueue_entries_of(engine, range(1, 200))
        for stream, keys in more.items():
            ids[stream] += keys
        workers.append(engine.worker(**STREAM_SETTINGS))
        await asyncio.sleep(1.5)
        paused.send(signal.SIGCONT)
    open_one.run("COMMIT")
    ids["s0"].append(str(row["intent_id"]))
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids


def enqueue_entries_of(engine, numbers):
    entries = [{"target": TARGET, "payload": {}, "stream": f"s{number}"} for number in numbers]
    rows = engine.outbox.enqueue_entries(entries)
    return {
        entry["stream"]: [str(row["intent_id"])] for entry, row in zip(entries, rows, strict=True)
    }


async def test_dead_holder_with_a_call_in_flight_loses_its_stream_at_the_second_expiry(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=600_000)
    [intent_id] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    dead = engine.worker(**STREAM_SETTINGS)
    await until(lambda: engine.outbox.pending(intent_id)["begun_at"])
    dead.send(signal.SIGKILL)
    await dead.ended()
    engine.sandbox.set_faults()
    engine.worker(**STREAM_SETTINGS)
    [lease] = engine.database.execute(
        "SELECT grace_expires_at FROM leasehold.leases WHERE lease_name LIKE 'stream/%'"
    )
    await engine.until_status([intent_id])
    [doubted, sent] = engine.outbox.ledger(intent_id)
    assert (doubted["state"], doubted["lease_epoch"]) == ("IN_DOUBT", 1)
    assert sent["state"] == "DISPATCHED"
    assert sent["lease_epoch"] > 1
    assert doubted["finished_at"] >= lease["grace_expires_at"]


async def test_slow_holder_keeps_its_stream_past_the_first_expiry(engine):
    """The call outlasts the first expiry while the holder's heartbeat is paused with it."""
    patient = {"lease_seconds": 60, "call_timeout_seconds": 50, "quarantine_seconds": 120}
    engine.publish(TARGET, scope="stream", **patient)
    engine.sandbox.set_faults(latency_ms=3000)
    ids = enqueue_rounds(engine, streams=1, rounds=1)
    settings = STREAM_SETTINGS | {"stream_grace_seconds": "600"}
    slow = engine.worker(**settings)
    [intent_id] = ids["s0"]
    await until(lambda: engine.outbox.pending(intent_id)["begun_at"])
    slow.send(signal.SIGSTOP)
    engine.worker(**settings)
    await until(
        lambda: engine.database.execute(
            "SELECT 1 FROM leasehold.leases WHERE lease_name LIKE 'stream/%'"
            "   AND expires_at < clock_timestamp() - interval '1 second'"
        )
    )
    slow.send(signal.SIGCONT)
    await engine.until_status([intent_id])
    # If it was paused before anything was sent, it gives the stream back; nothing is in doubt.
    [row] = engine.outbox.ledger(intent_id)
    assert row["state"] == "DISPATCHED"
    assert effects_by_stream(engine, ids) == ids


async def test_joining_instance_gets_its_share_of_busy_streams(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=50)
    ids = enqueue_rounds(engine, streams=8, rounds=200)
    first = await engine.worker("--concurrency", "8", **STREAM_SETTINGS).started()
    await until(lambda: len(held_by(engine, first)) == 8)
    second = await engine.worker("--concurrency", "8", **STREAM_SETTINGS).started()
    await until(lambda: len(held_by(engine, second)) >= 3)
    engine.sandbox.set_faults()
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_open_enqueuer_keeps_nobody_waiting(engine, how):
    engine.publish(TARGET, scope="stream")
    # Long leases: whoever waits for an expiry waits too long.
    engine.worker(stream_claim_seconds="600", stream_grace_seconds="600")
    ids = enqueue_rounds(engine, streams=3, rounds=1)
    open_one = engine.database.session("ingest")
    open_one.run("BEGIN")
    [row] = open_one.run(
        "SELECT leasehold.enqueue_intent(%s, '{}', NULL, %s::jsonb) AS intent_id",
        [TARGET, '{"stream": "s0"}'],
    )
    await engine.until_status(all_of(ids))
    more = enqueue_entries_of(engine, [1, 2])
    await engine.until_status(all_of(more))
    open_one.run(how)
    if how == "commit":
        await engine.until_status([row["intent_id"]])
    await engine.until_status(all_of(enqueue_entries_of(engine, [0])))
