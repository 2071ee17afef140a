"""Holders whose machine was suspended past the lease: their trust has ended, so they do nothing."""

from __future__ import annotations

from leasehold.coordination.elector import TRUST_ENDED
from tests.support.elections import ROW_LEASE_SETTINGS, holders_by_epoch

# The machine is suspended for an hour during the first call.
SUSPENDS = {"kind": "python", "function": "tests.support.python_gateways:suspend"}


async def test_suspended_worker_discards_the_result_of_its_call(engine, tmp_path):
    engine.publish("own", gateway=SUSPENDS)
    [intent_id] = engine.outbox.enqueue(1, "own")
    worker = engine.worker(test_folder=str(tmp_path))
    await worker.logged("late_result_discarded")
    engine.expire_held(await worker.started())
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]


async def test_suspended_leader_ends_its_term_and_writes_nothing_under_it(engine, tmp_path):
    engine.publish("own", scope="cluster", gateway=SUSPENDS)
    [intent_id] = engine.outbox.enqueue(1, "own")
    leader = engine.worker(test_folder=str(tmp_path), **ROW_LEASE_SETTINGS)
    assert (await leader.logged("leader_lost"))["why"] == TRUST_ENDED
    engine.outbox.expire_lease()
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    assert list(holders_by_epoch(engine, [intent_id])) == [2]
