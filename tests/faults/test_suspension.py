"""Holders whose machine was suspended past the lease: their trust has ended, so they do nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasehold.coordination.elector import TRUST_ENDED
from tests.support.elections import ROW_LEASE_SETTINGS, holders_by_epoch

SUSPENDED_MACHINE = Path(__file__).parents[1] / "support" / "suspended_machine"
SUSPENDS = {"kind": "python", "function": "tests.support.python_gateways:suspend"}


@pytest.fixture
def machine(tmp_path):
    """Settings of a worker on a machine that is suspended for an hour during its first call."""
    path = [str(SUSPENDED_MACHINE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"test_folder": str(tmp_path), "pythonpath": os.pathsep.join(path)}


async def test_suspended_worker_discards_the_result_of_its_call(engine, machine):
    engine.publish("own", gateway=SUSPENDS)
    [intent_id] = engine.outbox.enqueue(1, "own")
    worker = engine.worker(**machine)
    await worker.logged("late_result_discarded")
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]


async def test_suspended_leader_ends_its_term_and_writes_nothing_under_it(engine, machine):
    engine.publish("own", scope="cluster", gateway=SUSPENDS)
    [intent_id] = engine.outbox.enqueue(1, "own")
    leader = engine.worker(**ROW_LEASE_SETTINGS, **machine)
    assert (await leader.logged("leader_lost"))["why"] == TRUST_ENDED
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    assert list(holders_by_epoch(engine, [intent_id])) == [2]
