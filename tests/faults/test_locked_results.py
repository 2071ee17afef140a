"""Somebody locks pending rows for longer than a statement waits, when their calls begin or while
their results are written.

The database passes over these rows: the results of the others are on the ledger while one row is
locked, that of the locked row when it is free, and nothing is in doubt.
"""

from __future__ import annotations

from signal import SIGKILL

import pytest

from leasehold.coordination.reaper import REAPER_LEASE
from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until
from tests.support.held_gateway import HeldGateway

COUNT = 20
# Locks last for longer than a statement waits, and leases for longer than the test.
SETTINGS = ROW_LEASE_SETTINGS | {
    "stream_claim_seconds": "60",
    "lock_seconds": "0.3",
    "concurrency": str(COUNT),
    "shutdown_seconds": "30",
}
LOCK = "SELECT FROM leasehold.outbox_pending WHERE intent_id = ANY (%s) FOR UPDATE"
CLASSES = [("item", "blind"), ("stream", "blind"), ("cluster", "blind"), ("cluster", "keyed")]


@pytest.fixture
async def gateway():
    async with HeldGateway().running() as gateway:
        yield gateway


def enqueue(engine, gateway, scope, guarantee, **terms):
    engine.publish(
        "bank",
        guarantee,
        **{
            "scope": scope,
            "concurrency": COUNT,
            "lease_seconds": 60,
            "call_timeout_seconds": 25,
            "quarantine_seconds": 120,
            "gateway": gateway.terms(guarantee),
        }
        | terms,
    )
    entries = [{"target": "bank", "payload": one, "stream": f"s{one}"} for one in range(COUNT)]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


async def calls_under_way(engine, gateway, scope, guarantee, **terms):
    """Start a worker; return it when the gateway has all its calls, with their ids."""
    ids = enqueue(engine, gateway, scope, guarantee, **terms)
    worker = engine.worker(**SETTINGS)
    await until(lambda: len(gateway.received) == COUNT, context=worker.log.read_text)
    return worker, ids


def passed_over(worker):
    """Return the lines about rows that were still locked when their results were repeated."""
    return worker.lines("rows_locked")


async def test_one_locked_row_holds_up_no_other_call_of_a_leader(engine, gateway):
    ids = enqueue(engine, gateway, "cluster", "blind")
    gateway.may_answer.set()
    with engine.database.connect(autocommit=False) as other:
        other.execute(LOCK, [ids[:1]])
        worker = engine.worker(**SETTINGS)
        await engine.until_status(ids[1:])
        await until(lambda: len(worker.lines("begin_refused")) > 1)
        assert engine.statuses(ids[:1]) == ["pending"]
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["DISPATCHED"]] * COUNT
    assert set(gateway.received.values()) == {1}
    assert not worker.lines("leader_stepped_down")


async def test_one_locked_head_holds_up_no_other_stream(engine, gateway):
    ids = enqueue(engine, gateway, "stream", "blind")
    gateway.may_answer.set()
    with engine.database.connect(autocommit=False) as other:
        other.execute(LOCK, [ids[:1]])
        worker = engine.worker(**SETTINGS)
        await engine.until_status(ids[1:])
        assert engine.statuses(ids[:1]) == ["pending"]
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["DISPATCHED"]] * COUNT
    assert set(gateway.received.values()) == {1}
    assert "lock timeout" not in worker.log.read_text()


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
async def test_one_locked_row_holds_up_no_other_result(engine, gateway, scope, guarantee):
    worker, ids = await calls_under_way(engine, gateway, scope, guarantee)
    with engine.database.connect(autocommit=False) as other:
        other.execute(LOCK, [ids[:1]])
        gateway.may_answer.set()
        await engine.until_status(ids[1:])
        await until(lambda: len(passed_over(worker)) > 1)
        assert engine.statuses(ids[:1]) == ["pending"]
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["DISPATCHED"]] * COUNT
    assert set(gateway.received.values()) == {1}
    assert not worker.lines("leader_stepped_down")
    assert not worker.lines("write_rolled_back"), "nobody waited for the lock"
    lost = [line["lease_name"] for line in worker.lines("lease_lost") if "lease_name" in line]
    assert set(lost) <= {REAPER_LEASE}, "its own lease is short, and it may be late to renew it"
    assert len(lost) == len(worker.lines("lease_lost"))


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
async def test_results_of_locked_rows_are_written_when_the_rows_are_free(
    engine, gateway, scope, guarantee
):
    """Meanwhile no operator and no deadline ends an intent whose call was made."""
    worker, ids = await calls_under_way(engine, gateway, scope, guarantee, deadline_seconds=30)
    with engine.database.connect(autocommit=False) as other:
        other.execute(LOCK, [ids])
        gateway.may_answer.set()
        await until(lambda: sum(line["items"] for line in passed_over(worker)) > COUNT)
    cancelled = [
        engine.outbox.call("operator", "cancel_intent", one, "ann", "a test")[0]["cancel_intent"]
        for one in ids
    ]
    assert set(cancelled) <= {"in_flight", "already_terminal"}
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["DISPATCHED"]] * COUNT
    assert set(gateway.received.values()) == {1}


@pytest.mark.parametrize(("scope", "guarantee"), CLASSES)
async def test_calls_whose_results_were_being_repeated_are_in_doubt_after_a_crash(
    engine, gateway, scope, guarantee
):
    worker, ids = await calls_under_way(engine, gateway, scope, guarantee)
    with engine.database.connect(autocommit=False) as other:
        other.execute(LOCK, [ids[:5]])
        gateway.may_answer.set()
        await engine.until_status(ids[5:])
        await until(lambda: len(passed_over(worker)) > 1)
        worker.send(SIGKILL)
        await worker.ended()
    engine.expire_held(await worker.started())
    engine.worker(**SETTINGS)
    await until(lambda: all(map(engine.outbox.states, ids)))
    first = [engine.outbox.states(one)[0] for one in ids]
    # A write that waited in the database may have got its lock after the crash.
    assert set(first[:5]) in ({"IN_DOUBT"}, {"IN_DOUBT", "DISPATCHED"})
    assert first[5:] == ["DISPATCHED"] * (COUNT - 5)
    if guarantee == "blind":
        assert set(gateway.received.values()) == {1}
