"""Exactly one executor for a target of scope cluster, whatever happens to it."""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.support.engine import until

LEASE_NAME = "submission-manager-executor"
CLUSTER = {
    "cluster_lease_seconds": "2",
    "cluster_renew_seconds": "0.4",
    "cluster_acquire_seconds": "0.5",
    "schedule_refresh_seconds": "0.2",
}


@pytest.fixture
def cluster(engine):
    """An engine whose target is for one leader alone."""
    engine.publish("ledger", scope="cluster")
    return engine


def member(engine, **more):
    return engine.worker(**(CLUSTER | more))


def leaders(workers):
    return [worker for worker in workers if worker.lines("leader_acquired")]


async def leader_of(workers):
    return (await until(lambda: leaders(workers), told=lambda: [w.log.read_text() for w in workers]))[
        0
    ]


def lease(engine):
    [row] = engine.database.execute(
        "SELECT * FROM leasehold.leases WHERE lease_name = %s", [LEASE_NAME]
    )
    return row


def holders(engine, ids):
    return {row["holder"] for one in ids for row in engine.outbox.ledger(one)}


async def test_one_of_eight_that_start_at_once_leads_and_it_alone_executes(cluster):
    workers = [member(cluster) for _ in range(8)]
    names = [await worker.started() for worker in workers]
    ids = cluster.outbox.enqueue(20, "ledger")
    await cluster.until_status(ids)
    assert len(leaders(workers)) == 1
    assert holders(cluster, ids) == {lease(cluster)["holder_id"]}
    assert lease(cluster)["holder_id"] in names
    assert lease(cluster)["lease_epoch"] == 1
    effects = cluster.sandbox.effects("keyed")
    assert (effects.effects, effects.doubled_keys) == (20, 0)


async def test_killed_leader_is_replaced_when_its_lease_has_expired(cluster):
    first = member(cluster)
    await first.logged("leader_acquired")
    second = member(cluster)
    await second.started()
    first.send(SIGKILL)
    ids = cluster.outbox.enqueue(5, "ledger")
    await cluster.until_status(ids)
    acquired = second.lines("leader_acquired")[0]
    assert acquired["lease_epoch"] == 2
    assert holders(cluster, ids) == {acquired["holder_id"]}


async def test_nothing_is_executed_without_leadership(cluster):
    cluster.outbox.call("executor", "acquire_lease", LEASE_NAME, "somebody else", 60)
    follower = member(cluster)
    await follower.started()
    [intent_id] = cluster.outbox.enqueue(1, "ledger")
    cluster.publish("sms")
    await cluster.until_status(cluster.outbox.enqueue(2, "sms"))  # it works, but not on this
    assert cluster.statuses([intent_id]) == ["pending"]
    assert not follower.lines("leader_acquired")
    cluster.outbox.call("executor", "release_lease", LEASE_NAME, "somebody else", 1)
    await cluster.until_status([intent_id])


async def test_leader_that_loses_its_lease_stops_at_once_and_writes_nothing(cluster):
    cluster.sandbox.dial(latency_ms=1400)
    leader = member(cluster)
    acquired = await leader.logged("leader_acquired")
    ids = cluster.outbox.enqueue(30, "ledger")
    await cluster.until_in_flight(await leader.started(), 10)
    cluster.database.execute(
        "UPDATE leasehold.leases SET holder_id = 'usurper', lease_epoch = lease_epoch + 1,"
        " expires_at = 'infinity', grace_expires_at = 'infinity' WHERE lease_name = %s",
        [LEASE_NAME],
    )
    lost = await leader.logged("leader_lost")
    assert lost["lease_epoch"] == acquired["lease_epoch"] == 1
    cluster.publish("sms", "fenced")
    cluster.sandbox.dial()
    await cluster.until_status(cluster.outbox.enqueue(2, "sms"))
    assert cluster.sandbox.effects("keyed").keys <= 10  # what was in flight, nothing after it
    assert [row for one in ids for row in cluster.outbox.ledger(one)] == []


async def test_leader_picks_up_what_was_handed_in_elsewhere_without_being_told(cluster):
    leader = member(cluster, listen="false")
    await leader.logged("schedule_built")
    ids = cluster.outbox.enqueue(3, "ledger")
    await cluster.until_status(ids)
    later = cluster.outbox.enqueue(2, "ledger", delay_seconds=0.7)
    await cluster.until_status(later)


async def test_leader_that_resigns_is_followed_at_once(cluster):
    first = member(cluster, cluster_lease_seconds="60", cluster_renew_seconds="20")
    await first.logged("schedule_built")
    second = member(cluster, cluster_lease_seconds="60", cluster_acquire_seconds="0.2")
    await second.started()
    first.send(SIGTERM)
    assert await first.ended() == 0
    acquired = await second.logged("leader_acquired")
    assert acquired["lease_epoch"] == 2
    await cluster.until_status(cluster.outbox.enqueue(3, "ledger"))


async def test_leader_that_wakes_after_its_lease_calls_nothing_and_writes_nothing(cluster):
    cluster.sandbox.dial(latency_ms=1400)
    sleeper = member(cluster)
    await sleeper.logged("schedule_built")
    ids = cluster.outbox.enqueue(4, "ledger")
    await cluster.until_in_flight(await sleeper.started(), 4)
    sleeper.send(SIGSTOP)
    cluster.sandbox.dial()
    other = member(cluster)
    acquired = await other.logged("leader_acquired")
    await cluster.until_status(ids)
    more = cluster.outbox.enqueue(4, "ledger")
    sleeper.send(SIGCONT)
    await sleeper.logged("leader_lost")
    await cluster.until_status(more)
    assert holders(cluster, [*ids, *more]) == {acquired["holder_id"]}
    assert cluster.sandbox.effects("keyed").doubled_keys == 0
