"""Targets of scope stream: strict order inside a stream, parallel across streams."""

from __future__ import annotations

import signal

import pytest

from leasehold import Instance
from tests.engine.test_groups import COUNTING, settings_of
from tests.support.engine import until
from tests.support.held_gateway import HeldGateway
from tests.support.stream_orders import (
    TARGET,
    all_of,
    effects_by_stream,
    enqueue_rounds,
)


def held(engine):
    """The streams that instances hold, by holder."""
    rows = engine.database.execute(
        "SELECT holder_id, count(*) AS streams FROM leasehold.leases"
        " WHERE lease_name LIKE 'stream/%' AND expires_at > clock_timestamp() GROUP BY 1"
    )
    return {row["holder_id"]: row["streams"] for row in rows}


async def test_each_stream_is_executed_in_the_order_of_its_commits(engine):
    engine.publish(TARGET, scope="stream")
    ids = enqueue_rounds(engine, streams=10, rounds=20)
    engine.worker()
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids


async def test_stream_without_work_is_freed_at_once(engine):
    engine.publish(TARGET, scope="stream")
    ids = enqueue_rounds(engine, streams=3, rounds=2)
    engine.worker()
    await engine.until_status(all_of(ids))
    await until(lambda: not held(engine))


async def test_retry_of_a_head_lets_nothing_of_its_stream_pass(engine):
    engine.publish(TARGET, scope="stream", retry={"first_seconds": 0.1})
    engine.sandbox.set_faults(lost_response_rate=0.3, seed=7)
    ids = enqueue_rounds(engine, streams=5, rounds=6)
    engine.worker()
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids


async def test_rejected_head_blocks_its_own_stream_only(engine):
    engine.publish(TARGET, scope="stream")
    engine.worker()
    engine.sandbox.set_faults(reject_rate=1.0)
    [first] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    await engine.until_status([first], "rejected")
    engine.sandbox.set_faults()
    ids = enqueue_rounds(engine, streams=3, rounds=2)
    await engine.until_status(ids["s1"] + ids["s2"])
    assert set(engine.statuses(ids["s0"])) == {"pending"}
    assert effects_by_stream(engine, ids) == {"s1": ids["s1"], "s2": ids["s2"]}


async def test_stopped_worker_gives_up_its_streams_at_once(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=200)
    ids = enqueue_rounds(engine, streams=5, rounds=10)
    # Long leases: whoever waits for an expiry waits too long.
    patient = {"stream_claim_seconds": "600", "stream_grace_seconds": "600"}
    leaving = engine.worker(**patient)
    await until(lambda: held(engine))
    leaving.send(signal.SIGTERM)
    assert await leaving.ended() == 0
    assert held(engine) == {}
    engine.sandbox.set_faults()
    engine.worker(**patient)
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids


async def test_stopped_worker_wakes_the_others_for_its_streams(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=200)
    enqueue_rounds(engine, streams=5, rounds=10)
    leaving = engine.worker()
    await until(lambda: held(engine))
    listener = engine.database.connect("executor", autocommit=True)
    listener.execute("LISTEN leasehold_due")
    leaving.send(signal.SIGTERM)
    assert await leaving.ended() == 0
    hints = {one.payload for one in listener.notifies(timeout=30, stop_after=1)}
    assert hints == {TARGET}


async def test_worker_that_is_stopping_wants_no_streams_of_others(engine):
    """They would free streams that nobody takes, until its last call has ended."""
    async with HeldGateway().running() as gateway:
        engine.publish(TARGET, scope="stream", gateway=gateway.terms("keyed"))
        [intent_id] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
        leaving = engine.worker()
        await until(lambda: gateway.received)
        leaving.send(signal.SIGTERM)

        def shares():
            [row] = engine.database.execute(
                "SELECT stream_targets, streams_wanted FROM leasehold.instances"
            )
            return tuple(row.values())

        await until(lambda: shares() == ([], []))
        assert leaving.process.poll() is None
        gateway.may_answer.set()
        assert await leaving.ended() == 0
    await engine.until_status([intent_id])


def publish_batches(engine, **terms):
    """A gateway that takes up to five intents of a stream with one request."""
    gateway = {
        "kind": "http",
        "url": f"{engine.sandbox.url}/keyed",
        "allow_private": True,
        "submissions_max": 5,
    }
    engine.publish(TARGET, scope="stream", gateway=gateway, batch_max=5, **terms)


async def test_batch_of_a_stream_is_one_request_and_stays_in_order(engine):
    publish_batches(engine)
    ids = enqueue_rounds(engine, streams=4, rounds=15)
    engine.worker()
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids
    attempts = engine.database.execute(
        "SELECT max(attempt_no) AS most FROM leasehold.outbox_attempts"
    )
    assert attempts == [{"most": 1}]


async def test_rest_of_a_batch_whose_first_is_rejected_is_not_sent(engine):
    publish_batches(engine, on_failure="continue")
    engine.sandbox.set_faults(reject_rate=0.3, seed=5)
    ids = enqueue_rounds(engine, streams=3, rounds=12)
    engine.worker()
    await until(lambda: set(engine.statuses(all_of(ids))) == {"accepted", "rejected"})
    effects = effects_by_stream(engine, ids)
    for stream, keys in ids.items():
        accepted = [key for key in keys if engine.statuses([key]) == ["accepted"]]
        assert effects[stream] == accepted


@pytest.mark.parametrize("other", ["streams", "items"])
async def test_streams_that_always_have_work_starve_nothing_else(engine, other):
    """They have all slots, and keep them from call to call."""
    engine.publish("streams", scope="stream", gateway=COUNTING)
    engine.publish("items", gateway=COUNTING)
    flood = [*engine.outbox.enqueue(1000, "streams", stream="busy-1")]
    flood += engine.outbox.enqueue(1000, "streams", stream="busy-2")
    async with Instance(settings_of(engine, concurrency=2)):
        await until(lambda: engine.statuses(flood).count("accepted"))
        more = {"stream": "waiting"} if other == "streams" else {}
        await engine.until_status(engine.outbox.enqueue(3, other, **more))
        assert engine.statuses(flood).count("accepted") < 1000


async def test_streams_are_called_no_more_often_than_the_rate_of_their_target(engine):
    engine.publish(TARGET, scope="stream", rate_per_second=10)
    ids = enqueue_rounds(engine, streams=2, rounds=15)
    engine.worker()
    await engine.until_status(all_of(ids))
    received = [entry.received_at for entry in engine.sandbox.requests()]
    # The first may start at once; each of the others waits a tenth of a second. On a busy machine,
    # the first may arrive late.
    assert received[-1] - received[0] >= 29 / 10 - 1
    assert effects_by_stream(engine, ids) == ids
