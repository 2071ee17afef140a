"""Workers that are killed, paused or blocked at every fault point: nothing is lost or doubled."""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGTERM

import pytest

from leasehold.executor.faults import FaultPoint
from tests.support.engine import until


@pytest.mark.parametrize(
    "point",
    [
        point
        for point in FaultPoint
        if point not in {FaultPoint.AFTER_REBUILD, FaultPoint.DURING_RENEWAL}
    ],
)
async def test_worker_killed_anywhere_loses_nothing_and_doubles_nothing(engine, point):
    engine.publish("bank", "lookup")
    is_lookup = point is FaultPoint.BEFORE_LOOKUP
    engine.sandbox.set_faults(lost_response_rate=is_lookup)
    [intent_id] = engine.outbox.enqueue(1, "bank")
    doomed = engine.worker(fault=f"{point}:kill")
    if is_lookup:
        await until(lambda: engine.outbox.make_due() or doomed.process.poll() is not None)
    elif point is FaultPoint.DURING_CLAIM:
        await doomed.fault_after(lambda: engine.outbox.pending(intent_id)["claimed_by"])
    elif point is FaultPoint.DURING_CALL:
        await doomed.fault_after(engine.sandbox.requests)
    assert await doomed.ended() == -SIGKILL
    assert doomed.lines("fault")
    engine.expire_held(await doomed.started())
    engine.worker()
    # A dead worker sends nothing, so skip the quarantine.
    await until(lambda: engine.outbox.make_due() or engine.statuses([intent_id]) == ["accepted"])
    assert engine.sandbox.effects("lookup").effects == 1
    states = engine.outbox.states(intent_id)
    died_silently = {FaultPoint.DURING_CLAIM, FaultPoint.AFTER_CLAIM, FaultPoint.BEFORE_BEGIN}
    if point is FaultPoint.AFTER_COMPLETE:
        assert states == ["DISPATCHED"]
    elif point is not FaultPoint.DURING_COMPLETE:
        assert states[0] == ("ZOMBIE_REQUEUE" if point in died_silently else "IN_DOUBT")


async def test_killed_worker_is_reported_and_another_does_its_work(engine):
    engine.publish("sms", concurrency=10)
    engine.sandbox.set_faults(latency_ms=3000)
    first, second = engine.worker(concurrency="5"), engine.worker(concurrency="5")
    first_id, second_id = await first.started(), await second.started()
    ids = engine.outbox.enqueue(30)
    await until(
        lambda: (
            {first_id, second_id}
            == {row["claimed_by"] for row in map(engine.outbox.pending, ids) if row} - {None}
        )
    )
    first.send(SIGKILL)
    await first.ended()
    engine.sandbox.set_faults()
    engine.expire_held(first_id)
    await engine.until_status(ids)
    effects = engine.sandbox.effects("keyed")
    assert (effects.keys, effects.effects, effects.doubled_keys) == (30, 30, 0)
    dead = await second.logged("worker_died")
    assert dead["dead_worker"] == first_id


async def test_worker_that_is_paused_past_its_lease_discards_its_result_when_it_wakes(engine):
    engine.publish("sms")
    [intent_id] = engine.outbox.enqueue(1)
    sleeper = engine.worker(fault="after_call_before_complete:stop:3600")
    await sleeper.logged("fault")
    engine.expire_held(await sleeper.started())
    engine.worker()
    await engine.until_status([intent_id])
    sleeper.send(SIGCONT)
    await sleeper.logged("late_result_discarded")
    assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]
    assert engine.sandbox.effects("keyed").effects == 1
    sleeper.send(SIGTERM)
    assert await sleeper.ended() == 0


async def test_blocked_event_loop_does_not_write_a_stale_result(engine, tmp_path):
    engine.publish(
        "own", gateway={"kind": "python", "function": "tests.support.python_gateways:block"}
    )
    [intent_id] = engine.outbox.enqueue(1, "own")
    blocked = engine.worker(test_folder=str(tmp_path))
    await until((tmp_path / "block").exists)
    engine.expire_held(await blocked.started())
    other = engine.worker(test_folder=str(tmp_path))
    await engine.until_status([intent_id])
    (tmp_path / "unblock").touch()
    assert await blocked.logged("late_result_discarded")
    assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]
    assert engine.outbox.ledger(intent_id)[1]["holder"] == await other.started()
    # It continues to work.
    other.send(SIGTERM)
    assert await other.ended() == 0
    await engine.until_status(engine.outbox.enqueue(3, "own"))


async def test_call_that_does_not_end_is_aborted_and_recorded_in_doubt(engine, tmp_path):
    engine.publish(
        "own",
        gateway={"kind": "python", "function": "tests.support.python_gateways:cling"},
        # A busy machine gets the second call done in this time, which takes none.
        call_timeout_seconds=2,
        connect_timeout_seconds=1,
    )
    [intent_id] = engine.outbox.enqueue(1, "own")
    worker = engine.worker(test_folder=str(tmp_path), shutdown_seconds="0.5")
    await worker.logged("call_aborted")
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    assert engine.outbox.ledger(intent_id)[0]["reason"] == "aborted"
    # The call that ignores cancellation does not keep the process alive.
    worker.send(SIGTERM)
    assert await worker.ended() == 0
