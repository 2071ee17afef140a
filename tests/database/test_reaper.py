"""The reaper's log: it names the recovered holders, and lines about an intent have all ids."""

from __future__ import annotations

import pytest

from leasehold.coordination.reaper import REAPER_LEASE, Reaper
from leasehold.domain.timing import Timings
from leasehold.observe.metrics import Metrics
from leasehold.observe.traces import new_trace

TRACE = new_trace()


@pytest.fixture
def reaper(stores):
    return Reaper(stores.executor, "reaper-1", Timings, Metrics("reaper-1"))


def lines(caplog, event):
    """Return the fields of each log line of this event."""
    found = [vars(one).get("leasehold_fields", {}) for one in caplog.records]
    return [fields for fields in found if fields.get("event") == event]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_line_about_a_recovered_intent_has_all_ids(outbox, reaper, caplog, is_begun):
    caplog.set_level("INFO")
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(trace_context=TRACE.traceparent)
    claims = outbox.claim("dead")
    if is_begun:
        outbox.begin(claims, "dead")
    outbox.expire_claims(seconds_ago=3)
    await reaper.step()
    [line] = lines(caplog, "intent_recovered")
    assert line["intent_id"] == str(intent_id)
    assert line["attempt_no"] == 1
    assert line["worker_id"] == "reaper-1"
    assert line["trace_id"] == TRACE.trace_id
    assert line["dead_worker"] == "dead"
    assert line["state"] == ("IN_DOUBT" if is_begun else "ZOMBIE_REQUEUE")
    assert line["stale_seconds"] >= 3


async def test_line_about_a_missed_deadline_has_all_ids(outbox, reaper, caplog, database):
    caplog.set_level("INFO")
    outbox.publish()
    [intent_id] = outbox.enqueue(trace_context=TRACE.traceparent, deadline_seconds=60)
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
    )
    await reaper.step()
    [line] = lines(caplog, "deadline_missed")
    assert line == {
        "event": "deadline_missed",
        "intent_id": str(intent_id),
        "attempt_no": 1,
        "worker_id": "reaper-1",
        "trace_id": TRACE.trace_id,
    }


async def test_every_line_that_names_an_intent_has_all_ids(outbox, reaper, caplog):
    caplog.set_level("DEBUG")
    outbox.publish()
    outbox.enqueue(3)
    outbox.claim("dead")
    outbox.expire_claims()
    await reaper.step()
    ours = [
        vars(one)["leasehold_fields"] for one in caplog.records if one.name == Reaper.__module__
    ]
    about_intents = [one for one in ours if "intent_id" in one]
    assert len(about_intents) == 3
    for line in about_intents:
        assert {"attempt_no", "worker_id", "trace_id"} <= line.keys(), line


async def test_dead_worker_is_reported_once(outbox, reaper, caplog):
    outbox.publish()
    outbox.enqueue(2)
    for _ in range(2):
        outbox.claim("dead", batch_size=1)
        outbox.expire_claims()
        await reaper.step()
    assert [one["dead_worker"] for one in lines(caplog, "worker_died")] == ["dead"]


async def test_worker_that_returns_is_reported_again_when_it_dies(outbox, reaper, caplog):
    async def report():
        outbox.call("executor", "renew_instance", "sleeper", "worker", [], "{}", 60)
        await reaper.step()

    async def fall_silent():
        outbox.database.owner_execute(
            "UPDATE leasehold.instances SET alive_until = clock_timestamp(),"
            " last_seen_at = clock_timestamp() - interval '1 second'"
        )
        reaper._repair_due_at = 0
        await reaper.step()

    await report()
    for _ in range(2):
        await fall_silent()
    assert len(lines(caplog, "worker_died")) == 1
    assert lines(caplog, "worker_returned") == []
    # A pass that reads late compares with a later time, and leaves it to the next one.
    while not lines(caplog, "worker_returned"):
        reaper._repair_due_at = 0
        await report()
    assert [one["returned_worker"] for one in lines(caplog, "worker_returned")] == ["sleeper"]
    await fall_silent()
    assert len(lines(caplog, "worker_died")) == 2


async def test_expired_claim_behind_thousands_of_rows_that_came_later_is_repaired(outbox, reaper):
    """Their transaction was long: they stand before it."""
    outbox.publish()
    [intent_id] = outbox.enqueue()
    outbox.claim("dead")
    for _ in range(6):
        outbox.enqueue(1000)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '1 hour'"
        " WHERE claimed_by IS NULL"
    )
    outbox.expire_claims()
    assert outbox.call("executor", "repair_expired_leases", 10, "reaper") == []
    await reaper.step()
    assert outbox.states(intent_id) == ["ZOMBIE_REQUEUE"]


class SlowRepair:
    """A store whose repair takes long on the reaper's clock."""

    now = 100.0
    repairs = 0
    full_repairs = 0

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def clock(self):
        return self.now

    async def repair_expired_leases(self, *arguments, is_full):
        self.repairs += 1
        self.full_repairs += is_full
        self.now += 5.0
        return await self._store.repair_expired_leases(*arguments, is_full=is_full)


@pytest.mark.parametrize("lease_seconds", [30.0, 12.0])
async def test_slow_reaper_keeps_its_lease_and_repairs_once_per_lease(stores, lease_seconds):
    timings = Timings(
        lease_seconds=lease_seconds, heartbeat_seconds=3, reaper_seconds=5, shutdown_seconds=10
    )
    store = SlowRepair(stores.executor)
    reaper = Reaper(store, "reaper-1", lambda: timings, Metrics("reaper-1"), store.clock)
    await reaper.step()
    again_at = store.now + lease_seconds
    while store.repairs < 2 and store.now <= again_at:
        seconds = (await reaper.step()).seconds
        assert seconds <= timings.reaper_seconds  # half of its lease
        store.now += seconds
    assert store.repairs == store.full_repairs == 2
    answer = await stores.executor.acquire_lease(REAPER_LEASE, "reaper-2", 1.0)
    assert not answer.is_ours
