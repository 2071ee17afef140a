"""A gateway that refuses our credentials for a while costs no intent anything but time."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.engine.test_served_targets import scrape
from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until
from tests.support.held_gateway import HeldGateway

TARGET = "pay"
SETTINGS = ROW_LEASE_SETTINGS
SCOPES = ["item", "stream", "cluster"]
GUARANTEES = ["keyed", "lookup", "blind"]


def refuse(engine, status=401):
    rate = {401: "unauthorized_rate", 403: "forbidden_rate"}[status]
    engine.sandbox.set_faults(**{rate: 1})


def enqueue(engine, scope, count=12, **fields):
    """In scope stream: four streams."""
    if scope != "stream":
        return engine.outbox.enqueue(count, TARGET, **fields)
    ids = []
    for _ in range(count // 4):
        for name in ("a", "b", "c", "d"):
            ids += engine.outbox.enqueue(1, TARGET, stream=name, **fields)
    return ids


def deferred(engine):
    return engine.database.execute(
        "SELECT * FROM leasehold.outbox_pending WHERE deferred_since IS NOT NULL"
    )


def ledger(engine):
    return engine.database.execute(
        "SELECT intent_id, attempt_no, state FROM leasehold.outbox_attempts ORDER BY 1, 2"
    )


async def until_probed(engine, probes=2):
    """Wait until the target has been probed this often since the breaker opened."""
    before = len(engine.sandbox.requests())
    await until(
        lambda: engine.assert_none_failed() and len(engine.sandbox.requests()) >= before + probes
    )


def opened(worker):
    return [
        line
        for line in worker.lines("breaker_changed")
        if (line["before"], line["now"]) == ("closed", "open")
    ]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("scope", SCOPES)
async def test_refused_credentials_cost_no_attempt_and_all_is_delivered_once(
    engine, scope, guarantee
):
    engine.publish(TARGET, guarantee, scope=scope)
    refuse(engine)
    ids = enqueue(engine, scope)
    worker = engine.worker(metrics_port="0", **SETTINGS)
    await until(lambda: engine.assert_none_failed() and deferred(engine))
    await until_probed(engine)
    assert ledger(engine) == []
    assert {row["deferred_reason"] for row in deferred(engine)} == {"credentials_refused"}
    [line] = opened(worker)
    assert line["target"] == TARGET
    assert worker.lines("intent_deferred")[0]["code"] == "401"
    engine.outbox.count_queue()
    await until(lambda: engine.outbox.count_queue()["oldest_deferred_seconds"] > 0)
    [calls] = [await scrape(worker, "deferrals_total")]
    assert calls[TARGET] >= 1

    engine.sandbox.set_faults()
    await engine.until_status(ids)
    assert [row["state"] for row in ledger(engine)] == ["DISPATCHED"] * len(ids)
    effects = engine.sandbox.effects(guarantee)
    assert (effects.keys, effects.effects, effects.doubled_keys) == (len(ids), len(ids), 0)
    assert len(opened(worker)) == 1
    assert worker.lines("breaker_changed")[-1]["now"] == "closed"
    assert engine.outbox.count_queue()["deferred"] == 0
    if scope == "stream":
        accepted = engine.sandbox.accepted()
        assert all(list(keys) == sorted(keys) for keys in accepted.values())


@pytest.mark.parametrize("guarantee", ["keyed", "lookup"])
@pytest.mark.parametrize("scope", SCOPES)
async def test_worker_that_dies_while_the_target_refuses_it_doubles_nothing(
    engine, scope, guarantee
):
    engine.publish(TARGET, guarantee, scope=scope)
    refuse(engine, 403)
    ids = enqueue(engine, scope)
    workers = [engine.worker(**SETTINGS) for _ in range(2)]
    doomed_id = await workers[0].started()
    await until(lambda: engine.assert_none_failed() and deferred(engine))
    assert {row["deferred_reason"] for row in deferred(engine)} == {"access_refused"}
    workers[0].send(signal.SIGKILL)
    await workers[0].ended()
    engine.expire_held(doomed_id)
    await until_probed(engine)
    engine.sandbox.set_faults()
    # A dead worker sends nothing, so skip the quarantine of the calls that it had begun.
    await until(
        lambda: engine.outbox.make_due() or set(engine.statuses(ids)) == {"accepted"},
        context=lambda: engine.statuses(ids),
    )
    effects = engine.sandbox.effects(guarantee)
    assert (effects.keys, effects.effects, effects.doubled_keys) == (len(ids), len(ids), 0)


@pytest.mark.parametrize("scope", SCOPES)
async def test_deadline_ends_what_is_deferred(engine, scope):
    engine.publish(TARGET, scope=scope)
    refuse(engine)
    await engine.worker(**SETTINGS).started()
    ids = enqueue(engine, scope, 4, deadline_seconds=5)
    await until(lambda: engine.assert_none_failed() and deferred(engine))
    await engine.until_status(ids, "exhausted")
    reasons = engine.database.execute(
        "SELECT DISTINCT reason, attempts FROM leasehold.intent_status"
    )
    assert reasons == [{"reason": "deadline_exceeded", "attempts": 1}]
    assert engine.sandbox.effects().effects == 0


@pytest.mark.parametrize("scope", SCOPES)
async def test_refused_connections_cost_even_an_intent_with_one_attempt_nothing(engine, scope):
    gateway = HeldGateway()
    gateway.may_answer.set()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        gateway.url = f"http://127.0.0.1:{port}"
        engine.publish(
            TARGET,
            "blind",
            scope=scope,
            gateway=gateway.terms("blind"),
            retry_policy="one_shot",
            attempts_max=1,
        )
        ids = enqueue(engine, scope, 4)
        worker = engine.worker(**SETTINGS)
        await until(lambda: engine.assert_none_failed() and deferred(engine))
        await until(lambda: len(worker.lines("connect_failed")) > 2)
        assert ledger(engine) == []
        assert {row["deferred_reason"] for row in deferred(engine)} == {"connect"}
        assert len(opened(worker)) == 1
    async with gateway.running(port):
        await engine.until_status(ids)
    assert [row["state"] for row in ledger(engine)] == ["DISPATCHED"] * len(ids)
    assert set(gateway.received.values()) == {1}
