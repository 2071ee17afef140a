"""The targets of a group: none starves another, and one that moves is finished where it was."""

from __future__ import annotations

import pytest

from leasehold import Instance, read_settings
from leasehold.domain.errors import LeaseholdError
from leasehold.store.postgres.contracts import PostgresContracts
from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import PATIENT_CALLS, until
from tests.support.outbox import CLUSTER_LEASE
from tests.support.python_gateways import CallsAtOnce

COUNTING = {"kind": "python", "function": "tests.support.python_gateways:count"}


def settings_of(engine, **more):
    quick = {"schedule_refresh_seconds": 0.1, "contracts_seconds": 0.1, "shutdown_seconds": 2}
    quick |= {"heartbeat_seconds": 0.4, "reaper_seconds": 0.3, **PATIENT_CALLS}
    url = engine.database.url_as("executor")
    return read_settings(database_url=url, lease_seconds=60, **(quick | more))


async def test_three_groups_and_items_share_the_slots_of_one_instance(engine, monkeypatch):
    monkeypatch.setattr(CallsAtOnce, "most", 0)
    ids = []
    for target in ("items", "first", "second", "third"):
        group = {} if target == "items" else {"scope": "cluster", "lease_name": target}
        engine.publish(target, gateway=COUNTING, **group)
        ids += engine.outbox.enqueue(20, target)
    async with Instance(settings_of(engine, concurrency=6)):
        await engine.until_status(ids)
    assert CallsAtOnce.most == 6


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_flood_of_one_group_does_not_starve_another_or_the_items(engine, concurrency):
    quick = []
    for target in ("flood", "quick", "items"):
        group = {} if target == "items" else {"scope": "cluster", "lease_name": target}
        engine.publish(target, gateway=COUNTING, **group)
    flood = engine.outbox.enqueue(1000, "flood")
    async with Instance(settings_of(engine, concurrency=concurrency)):
        await until(lambda: engine.statuses(flood).count("accepted"))
        quick = [*engine.outbox.enqueue(5, "quick"), *engine.outbox.enqueue(5, "items")]
        await engine.until_status(quick)
        assert engine.statuses(flood).count("accepted") < 500


async def test_gauges_of_a_leader_that_is_idle_or_stepped_down_do_not_keep_their_values(engine):
    engine.publish("ledger", scope="cluster")
    engine.outbox.enqueue(3, "ledger", delay_seconds=3600)
    async with Instance(settings_of(engine)) as instance:

        def value(name, **labels):
            given = {"worker_id": instance.worker_id} | labels
            return instance.metrics.registry.get_sample_value(f"leasehold_{name}", given)

        await engine.until_status(engine.outbox.enqueue(5, "ledger"))
        await until(lambda: value("in_flight", target="ledger") == 0)
        await until(lambda: value("schedule_size", lease_name=CLUSTER_LEASE) == 3)
        [elector] = instance.elections.electors
        elector.step_down(elector.term, RuntimeError("a test"))
        await until(lambda: value("schedule_size", lease_name=CLUSTER_LEASE) == 0)
        assert value("is_leader", lease_name=CLUSTER_LEASE) == 0
    assert value("is_leader", lease_name=CLUSTER_LEASE) is None


async def test_target_that_is_not_served_any_more_loses_its_breaker_gauge(engine):
    engine.publish("sms")
    async with Instance(settings_of(engine)) as instance:
        labels = {"worker_id": instance.worker_id, "target": "sms", "state": "closed"}

        def breaker():
            return instance.metrics.registry.get_sample_value("leasehold_breaker_state", labels)

        await engine.until_status(engine.outbox.enqueue(1))
        assert breaker() == 1
        engine.publish("sms", gateway={"kind": "python", "function": "no_such_module:submit"})
        await until(lambda: breaker() is None)


async def test_flood_for_a_slow_target_does_not_starve_another_of_its_group(engine):
    engine.publish("slow", scope="cluster", concurrency=1)
    engine.publish("quick", scope="cluster")
    engine.sandbox.set_faults(latency_ms=1000)
    engine.outbox.enqueue(9_999, "slow")
    engine.outbox.enqueue(9_999, "slow", priority=0)
    leader = engine.worker(**ROW_LEASE_SETTINGS)
    await leader.logged("leader_acquired")
    await until(lambda: engine.sandbox.effects("keyed").effects)
    ids = engine.outbox.enqueue(3, "quick")
    await engine.until_status(ids)
    # The next leader finds what was there before it, too.
    leader.close()
    engine.outbox.expire_lease()
    before = engine.outbox.enqueue(3, "quick")
    engine.worker(**ROW_LEASE_SETTINGS)
    await engine.until_status(before)


async def test_target_that_moves_to_another_group_is_finished_in_the_former(engine):
    engine.publish("ledger", scope="cluster", lease_name="old-group")
    ids = engine.outbox.enqueue(3, "ledger", delay_seconds=1)
    engine.publish("ledger", scope="cluster", lease_name="new-group")
    ids += engine.outbox.enqueue(3, "ledger")
    engine.worker(**ROW_LEASE_SETTINGS)
    await engine.until_status(ids)
    leases = {row["lease_name"] for one in ids for row in engine.outbox.ledger(one)}
    assert leases == {"old-group", "new-group"}


async def test_target_that_changes_its_scope_is_finished_in_the_former(engine):
    engine.publish("ledger", scope="cluster")
    engine.publish("sms")
    ids = [*engine.outbox.enqueue(2, "ledger"), *engine.outbox.enqueue(2, "sms")]
    engine.publish("ledger")
    engine.publish("sms", scope="cluster")
    ids += [*engine.outbox.enqueue(2, "ledger"), *engine.outbox.enqueue(2, "sms")]
    worker = engine.worker(**ROW_LEASE_SETTINGS)
    await engine.until_status(ids)
    assert not worker.lines("target_refused")
    rows = engine.database.execute(
        "SELECT DISTINCT p.target, a.lease_name IS NULL AS is_item FROM leasehold.outbox_attempts a"
        " JOIN leasehold.intents p USING (intent_id) ORDER BY 1, 2"
    )
    assert [(row["target"], row["is_item"]) for row in rows] == [
        ("ledger", False),
        ("ledger", True),
        ("sms", False),
        ("sms", True),
    ]


async def test_target_that_changes_its_scope_has_one_gate_in_both(engine, monkeypatch):
    """Each scope had its own: a target was called twice as much as it permits while it moved."""
    monkeypatch.setattr(CallsAtOnce, "most", 0)
    ids = []
    for scope, lease in (("item", None), ("cluster", "group"), ("stream", None)):
        engine.publish("ledger", gateway=COUNTING, scope=scope, lease_name=lease, concurrency=1)
        for number in range(10):
            streams = {"stream": f"s{number}"} if scope == "stream" else {}
            ids += engine.outbox.enqueue(1, "ledger", **streams)
    reads = []
    read_contracts = PostgresContracts.read_contracts

    async def counted(*arguments):
        reads.append(arguments)
        return await read_contracts(*arguments)

    monkeypatch.setattr(PostgresContracts, "read_contracts", counted)
    async with Instance(settings_of(engine, concurrency=10, contracts_seconds=60)):
        await engine.until_status(ids)
    assert CallsAtOnce.most == 1
    assert len(reads) == 1, "one reader serves all scopes"


async def test_term_that_has_ended_holds_no_rows_in_memory(engine):
    """They stayed until the next term, and without one for ever."""
    engine.publish("ledger", scope="cluster")
    engine.outbox.enqueue(50, "ledger", delay_seconds=3600)
    async with Instance(settings_of(engine)) as instance:
        sessions = instance.elections._sessions
        await until(lambda: any(len(one._executor._queue) == 50 for one in sessions.values()))
        [ended] = sessions.values()
        instance.elections.step_down(LeaseholdError("a test"))
        await until(lambda: ended._term.ended.is_set())
        await until(lambda: not ended._executor._queue.known())
