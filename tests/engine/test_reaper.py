"""There is one reaper at a time, and no worker starts without one."""

from __future__ import annotations

from signal import SIGKILL

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS, start_leader
from tests.support.engine import SHORT_CALLS, until

REFUSED = {
    "heartbeat": ({"heartbeat_seconds": "10"}, "heartbeat_seconds (10) must be less than"),
    "reaper": ({"reaper_seconds": "30"}, "reaper_seconds (30) must be less than lease_seconds"),
    "shutdown": ({"shutdown_seconds": "31"}, "shutdown_seconds (31) must not exceed"),
    "no reaper": ({"reaper": "false"}, "--no-reaper is refused"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_worker_refuses_to_start_with_settings_that_cannot_work(engine, case):
    environment, reason = REFUSED[case]
    engine.publish("sms")
    worker = engine.worker(**SHORT_CALLS | environment)
    assert await worker.ended() == 1
    assert reason in worker.log.read_text()


async def test_two_instances_have_one_reaper_and_a_dead_one_is_replaced(engine):
    engine.publish("sms")
    workers = [engine.worker(), engine.worker()]
    for worker in workers:
        await worker.started()
    await until(lambda: any(worker.lines("reaper_elected") for worker in workers))
    await engine.until_status(engine.outbox.enqueue(20))
    [reaper] = [worker for worker in workers if worker.lines("reaper_elected")]
    [other] = [worker for worker in workers if worker is not reaper]
    reaper.send(SIGKILL)
    await other.logged("reaper_elected")


async def test_intents_of_a_group_that_nobody_leads_end_at_their_deadline(engine):
    """Another worker's reaper ends them; no worker of the group runs."""
    engine.publish("sms")
    engine.publish("ledger", scope="cluster")
    ids = engine.outbox.enqueue(3, "ledger", deadline_seconds=1)
    worker = engine.worker(targets='["sms"]')
    await engine.until_status(ids, "exhausted")
    await until(lambda: len(worker.lines("deadline_missed")) == 3)  # logged after the commit
    assert engine.sandbox.requests() == []


async def test_leader_that_may_not_call_goes_on_after_the_reaper_ended_its_rows(engine):
    """Its rows are in its memory: the rate limit keeps them there past their deadline."""
    engine.publish("ledger", scope="cluster", rate_per_second=0.5)
    late = engine.outbox.enqueue(5, "ledger", deadline_seconds=1)
    worker = await start_leader(engine, **ROW_LEASE_SETTINGS)
    await until(lambda: set(engine.statuses(late)) <= {"accepted", "exhausted"})
    assert "exhausted" in engine.statuses(late)
    engine.publish("ledger", scope="cluster")
    await engine.until_status(engine.outbox.enqueue(3, "ledger"))
    assert worker.lines("leader_lost") == worker.lines("leader_stepped_down") == []
    assert len(worker.lines("leader_acquired")) == 1


async def test_worker_without_a_reaper_starts_where_another_reaps(engine):
    engine.publish("sms")
    await engine.worker().logged("reaper_elected")
    worker = engine.worker("--no-reaper")
    await worker.started()
    await until(
        lambda: engine.database.execute(
            "SELECT 1 FROM leasehold.instances WHERE detail ->> 'reaper' = 'false'"
        )
    )
    assert worker.lines("reaper_missing") == []
