"""A target of scope cluster has exactly one executor, whatever happens to the leader."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM

import pytest

from leasehold.executor.faults import FaultPoint
from tests.support.elections import (
    ROW_LEASE_SETTINGS,
    constant_work,
    failing_function,
    fences,
    holders,
    holders_by_epoch,
    lease,
    start_leader,
)
from tests.support.engine import CUT_OFF, until
from tests.support.outbox import CLUSTER_LEASE
from tests.support.tcp_proxy import TcpProxy

SKEWED_CLOCK = Path(__file__).parents[1] / "support" / "skewed_clock"
# A hundred in a long run; each takes about a third of a second.
ELECTIONS = int(os.environ.get("TEST_ELECTIONS", "8"))
# Every run visits these; the test of workers visits every fault point.
OFTEN = {FaultPoint.AFTER_REBUILD, FaultPoint.DURING_CALL, FaultPoint.DURING_COMPLETE}
# A holder that stops here wakes an hour later: its trust has ended.
ASLEEP = "stop:3600"
# Longer than any test: an instance that is elected sooner was notified.
FOREVER = {"cluster_lease_seconds": "600", "cluster_acquire_seconds": "600"}


@pytest.fixture
def cluster(engine):
    """An engine with a target of scope cluster."""
    engine.publish("ledger", scope="cluster")
    return engine


def member(engine, **more):
    return engine.worker(**(ROW_LEASE_SETTINGS | more))


def leaders(workers):
    return [worker for worker in workers if worker.lines("leader_acquired")]


async def test_one_of_eight_workers_that_start_together_leads_and_alone_executes(cluster):
    workers = [member(cluster) for _ in range(8)]
    names = [await worker.started() for worker in workers]
    ids = cluster.outbox.enqueue(20, "ledger")
    await cluster.until_status(ids)
    assert len(leaders(workers)) == 1
    assert holders(cluster, ids) == {lease(cluster)["holder_id"]}
    assert lease(cluster)["holder_id"] in names
    assert lease(cluster)["lease_epoch"] == 1
    assert fences(cluster) == [1] * 20


async def test_killed_leader_is_replaced_when_its_lease_has_expired(cluster):
    first = member(cluster)
    await first.logged("leader_acquired")
    second = member(cluster)
    await second.started()
    first.send(SIGKILL)
    await first.ended()
    ids = cluster.outbox.enqueue(5, "ledger")
    assert not second.lines("leader_acquired")
    cluster.outbox.expire_lease()
    await cluster.until_status(ids)
    acquired = second.lines("leader_acquired")[0]
    assert acquired["lease_epoch"] == 2
    assert holders(cluster, ids) == {acquired["holder_id"]}
    assert set(fences(cluster)) == {2}


@pytest.mark.parametrize(("ends_by", "role"), [(SIGKILL, "silent"), (SIGTERM, "stopped")])
async def test_ended_leader_is_no_longer_listed_as_one(cluster, ends_by, role):
    first = member(cluster)
    name = await first.started()
    await until(lambda: listed_role(cluster, name) == "leader")
    first.send(ends_by)
    await first.ended()
    await until(lambda: listed_role(cluster, name) == role)


def listed_role(cluster, instance_id):
    rows = cluster.database.execute(
        "SELECT role FROM leasehold.instance_status WHERE instance_id = %s", [instance_id]
    )
    return rows[0]["role"] if rows else None


async def test_nothing_is_executed_without_leadership(cluster):
    cluster.outbox.call("executor", "acquire_lease", CLUSTER_LEASE, "somebody else", 60)
    follower = member(cluster)
    await follower.started()
    [intent_id] = cluster.outbox.enqueue(1, "ledger")
    cluster.publish("sms")
    await cluster.until_status(cluster.outbox.enqueue(2, "sms"))  # it works, but not on this
    assert cluster.statuses([intent_id]) == ["pending"]
    assert not follower.lines("leader_acquired")
    cluster.outbox.call("executor", "release_lease", CLUSTER_LEASE, "somebody else", 1)
    await cluster.until_status([intent_id])


async def test_leader_that_loses_its_lease_stops_at_once_and_writes_nothing(cluster):
    cluster.sandbox.set_faults(latency_ms=600_000)
    leader = member(cluster)
    acquired = await leader.logged("leader_acquired")
    ids = cluster.outbox.enqueue(30, "ledger")
    await cluster.until_in_flight(await leader.started(), 10)
    cluster.database.execute(
        "UPDATE leasehold.leases SET holder_id = 'usurper', lease_epoch = lease_epoch + 1,"
        " expires_at = 'infinity', grace_expires_at = 'infinity' WHERE lease_name = %s",
        [CLUSTER_LEASE],
    )
    lost = await leader.logged("leader_lost")
    assert lost["lease_epoch"] == acquired["lease_epoch"] == 1
    cluster.publish("sms", "fenced")
    cluster.sandbox.set_faults()
    await cluster.until_status(cluster.outbox.enqueue(2, "sms"))
    assert cluster.sandbox.effects("keyed").keys <= 10  # what was in flight, nothing after it
    assert [row for one in ids for row in cluster.outbox.ledger(one)] == []


async def test_leader_finds_an_intent_without_a_notification(cluster):
    leader = member(cluster, listen="false")
    await leader.logged("due_queue_built")
    ids = cluster.outbox.enqueue(3, "ledger")
    await cluster.until_status(ids)
    later = cluster.outbox.enqueue(2, "ledger", delay_seconds=0.3)
    await cluster.until_status(later)


async def test_leader_that_resigns_is_replaced_at_once_and_spends_no_attempt(cluster):
    first = await start_leader(cluster, **(ROW_LEASE_SETTINGS | FOREVER))
    second = member(cluster, **FOREVER)
    await second.started()
    await until(lambda: is_listening(cluster, second))
    async with constant_work(cluster) as ids:
        await until(lambda: fences(cluster))
        first.send(SIGTERM)
        assert await first.ended() == 0
        acquired = await second.logged("leader_acquired")
        await until(lambda: fences(cluster)[-1] == 2)
    assert acquired["lease_epoch"] == 2
    assert first.lines("leader_stepped_down")[0]["why"] == "shutdown"
    assert all(cluster.outbox.states(intent_id) == ["DISPATCHED"] for intent_id in ids)


def is_listening(engine, worker):
    """Whether the worker listens for released leases and knows the current leader."""
    return engine.database.execute(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'",
        [f"leasehold notifier {worker.lines('worker_started')[0]['worker_id']}"[:63]],
    )


async def test_leader_that_wakes_after_its_lease_makes_no_call_and_writes_nothing(cluster):
    cluster.sandbox.set_faults(latency_ms=400)
    ids = cluster.outbox.enqueue(3, "ledger")
    sleeper = member(cluster, fault=f"during_call:{ASLEEP}")
    # They are answered, but nobody hears it.
    await sleeper.fault_after(lambda: fences(cluster) == [1, 1, 1])
    more = cluster.outbox.enqueue(4, "ledger")
    cluster.sandbox.set_faults()
    cluster.outbox.expire_lease()
    other = member(cluster)
    await cluster.until_status([*ids, *more])
    sleeper.send(SIGCONT)
    await sleeper.logged("leader_lost")
    later = cluster.outbox.enqueue(4, "ledger")
    await cluster.until_status(later)
    assert holders(cluster, [*ids, *more, *later]) == {await other.started()}
    assert fences(cluster) == [1] * 3 + [2] * 11
    # Every attempt has its ledger row, also those without a result.
    assert all(cluster.outbox.states(one) == ["IN_DOUBT", "DISPATCHED"] for one in ids)


@pytest.mark.parametrize(
    ("point", "terms"),
    [
        ("after_claim", {}),
        pytest.param("after_begin", {"key_window_seconds": 3600}, marks=pytest.mark.thorough),
    ],
)
async def test_leader_that_wakes_right_before_a_call_does_not_make_it(engine, point, terms):
    engine.publish("ledger", scope="cluster", **terms)
    ids = engine.outbox.enqueue(3, "ledger")
    sleeper = member(engine, fault=f"{point}:{ASLEEP}")
    await sleeper.logged("fault")
    engine.outbox.expire_lease()
    other = member(engine)
    await engine.until_status(ids)
    sleeper.send(SIGCONT)
    await sleeper.logged("leader_lost")
    await until(lambda: len(sleeper.lines("call_skipped")) == 3)
    later = engine.outbox.enqueue(3, "ledger")
    await engine.until_status(later)
    assert set(fences(engine)) == {2}
    assert holders(engine, later) == {await other.started()}


@pytest.mark.parametrize(
    "point",
    [
        point if point in OFTEN else pytest.param(point, marks=pytest.mark.thorough)
        for point in FaultPoint
        if point not in {FaultPoint.DURING_CLAIM, FaultPoint.DURING_RENEWAL}
    ],
)
async def test_leader_killed_anywhere_loses_nothing_and_doubles_nothing(engine, point):
    engine.publish("ledger", "lookup", scope="cluster")
    [intent_id] = engine.outbox.enqueue(1, "ledger")
    if point is FaultPoint.BEFORE_LOOKUP:
        engine.sandbox.set_faults(lost_response_rate=1)
    doomed = member(engine, fault=f"{point}:kill")
    if point is FaultPoint.BEFORE_LOOKUP:
        await until(lambda: engine.outbox.make_due() or doomed.process.poll() is not None)
    if point is FaultPoint.DURING_CALL:
        await doomed.fault_after(lambda: fences(engine) == [1])
    assert await doomed.ended() == -SIGKILL
    assert doomed.lines("fault")
    engine.outbox.expire_lease()
    member(engine)
    # A dead leader sends nothing, so skip the quarantine.
    await until(lambda: engine.outbox.make_due() or engine.statuses([intent_id]) == ["accepted"])
    assert engine.sandbox.effects("lookup").effects == 1
    states = engine.outbox.states(intent_id)
    if point in {FaultPoint.AFTER_BEGIN, FaultPoint.DURING_CALL, FaultPoint.BEFORE_LOOKUP}:
        assert states[0] == "IN_DOUBT"
    elif point in {FaultPoint.AFTER_REBUILD, FaultPoint.AFTER_CLAIM, FaultPoint.BEFORE_BEGIN}:
        assert states == ["DISPATCHED"]  # nothing was called, and no claim is left to repair


async def test_leader_that_loses_its_lease_while_it_rebuilds_does_not_act(cluster):
    ids = cluster.outbox.enqueue(3, "ledger")
    slow = member(cluster, fault=f"after_rebuild:{ASLEEP}")
    await slow.logged("fault")
    cluster.outbox.expire_lease()
    other = member(cluster)
    acquired = await other.logged("leader_acquired")
    await cluster.until_status(ids)
    later = cluster.outbox.enqueue(3, "ledger")
    slow.send(SIGCONT)
    await slow.logged("leader_lost")
    assert not slow.lines("due_queue_built")
    await cluster.until_status(later)
    assert holders(cluster, [*ids, *later]) == {acquired["holder_id"]}


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
async def test_leader_that_is_cut_off_stops_and_another_continues(cluster, fault):
    url = cluster.database.url_as("executor")
    async with TcpProxy(url) as proxy:
        lonely = member(cluster, url=proxy.through(url), **CUT_OFF)
        await lonely.logged("due_queue_built")
        getattr(proxy, fault)()
        other = member(cluster)
        lost = await lonely.logged("leader_lost")
        cluster.outbox.expire_lease()
        acquired = await other.logged("leader_acquired")
        assert acquired["lease_epoch"] == lost["lease_epoch"] + 1
        assert acquired["timestamp"] > lost["timestamp"]
        ids = cluster.outbox.enqueue(3, "ledger")
        await cluster.until_status(ids)
        assert holders(cluster, ids) == {acquired["holder_id"]}
        proxy.heal()
        other.send(SIGTERM)
        assert await other.ended() == 0
        await cluster.until_status(cluster.outbox.enqueue(3, "ledger"))


async def test_rows_that_commit_behind_the_cursor_are_found(cluster):
    leader = member(cluster, listen="false")
    await leader.logged("due_queue_built")
    late = cluster.database.connect("ingest", autocommit=False)
    [row] = late.execute(
        "SELECT intent_id FROM leasehold.enqueue_intents(%s)",
        [json.dumps([{"target": "ledger", "payload": 1}])],
    ).fetchall()
    for _ in range(3):
        await cluster.until_status(cluster.outbox.enqueue(2, "ledger"))
    late.commit()
    await cluster.until_status([row["intent_id"]])
    assert not leader.lines("cursor_missed_changes")


async def test_thousands_of_rows_with_equal_timestamps_are_all_executed(cluster):
    cluster.publish("ledger", scope="cluster", concurrency=200)
    leader = member(cluster, listen="false", concurrency="200")
    await leader.logged("due_queue_built")
    ids = cluster.outbox.enqueue(2500, "ledger")  # one transaction, one stamp, three pages
    await cluster.until_status(ids)
    assert cluster.sandbox.effects("keyed").effects == 2500


def skewed_clock(hours):
    """The environment of a process whose wall clock is wrong from the start."""
    path = [str(SKEWED_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"test_clock_offset": str(3600 * hours), "pythonpath": os.pathsep.join(path)}


async def test_leader_whose_wall_clock_is_hours_wrong_works_as_usual(cluster):
    leader = member(cluster, **skewed_clock(hours=5))
    await leader.started()
    soon, much_later = (
        cluster.outbox.enqueue(1, "ledger", delay_seconds=delay)[0] for delay in (0.3, 3600)
    )
    await cluster.until_status([soon])
    assert cluster.statuses([much_later]) == ["pending"]
    assert lease(cluster)["expires_at"] > lease(cluster)["renewed_at"]
    told_at = datetime.fromisoformat(leader.lines("due_queue_built")[0]["timestamp"])
    assert told_at - lease(cluster)["renewed_at"] > timedelta(hours=4), "its clock was right"


async def test_every_epoch_of_many_elections_has_one_holder(cluster):
    workers = [member(cluster, cluster_acquire_seconds="0.05") for _ in range(3)]
    for worker in workers:
        await worker.started()
    async with constant_work(cluster) as ids:
        for _ in range(ELECTIONS):
            await until(lambda: fences(cluster)[-1:] == [lease(cluster)["lease_epoch"]])
            epoch = lease(cluster)["lease_epoch"]
            with failing_function(cluster.database, "refresh_schedule", "58030"):
                await until(lambda epoch=epoch: lease(cluster)["lease_epoch"] > epoch)
    by_epoch = {
        line["lease_epoch"]: line["holder_id"]
        for worker in workers
        for line in worker.lines("leader_acquired")
    }
    assert sum(len(worker.lines("leader_acquired")) for worker in workers) == len(by_epoch)
    assert set(fences(cluster)) <= by_epoch.keys()
    assert len(set(fences(cluster))) > ELECTIONS
    for epoch, found in holders_by_epoch(cluster, ids).items():
        assert found == {by_epoch[epoch]}
