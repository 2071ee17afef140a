"""The targets of a group: none starves another, and one that moves is finished where it was."""

from __future__ import annotations

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until


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
