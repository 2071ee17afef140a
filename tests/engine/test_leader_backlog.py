"""A leader with more work than it can call, or than it can remember."""

from __future__ import annotations

from leasehold import Instance, read_settings
from leasehold.executor.leader import executor as leader_executor
from tests.support.elections import start_leader
from tests.support.engine import until
from tests.support.outbox import CLUSTER_LEASE

LONG = {"cluster_lease_seconds": "60", "cluster_renew_seconds": "20"}


def marked(engine):
    """Return the intents whose calls may be in flight, by the marks in the database."""
    rows = engine.database.execute("SELECT unnest(intent_ids) AS one FROM leasehold.call_marks")
    return {row["one"] for row in rows}


async def test_call_that_cannot_start_is_not_marked_can_be_cancelled_and_delays_nobody(engine):
    slow = {"scope": "cluster", "call_timeout_seconds": 20, "lease_seconds": 30}
    slow |= {"quarantine_seconds": 120}
    engine.publish("ledger", concurrency=2, **slow)
    engine.publish("book", **slow)
    await start_leader(engine, schedule_refresh_seconds="0.1", **LONG)
    await engine.until_status(engine.outbox.enqueue(20, "ledger"))
    engine.sandbox.set_faults(latency_ms=4000)
    ledger = set(engine.outbox.enqueue(8, "ledger"))
    await until(lambda: len(marked(engine) & ledger) == 2)
    [book] = engine.outbox.enqueue(1, "book")
    await until(lambda: book in marked(engine))
    assert len(marked(engine) & ledger) == 2
    waiting = next(iter(ledger - marked(engine)))
    [row] = engine.outbox.call("operator", "cancel_intent", waiting, "ann", "a test")
    assert row["cancel_intent"] == "cancelled"
    assert set(engine.statuses(list(ledger - {waiting}))) == {"pending"}
    engine.sandbox.set_faults(latency_ms=0)
    await engine.until_status([*ledger - {waiting}, book])
    assert all(engine.outbox.states(one) == ["DISPATCHED"] for one in ledger - {waiting})


async def test_backlog_larger_than_the_due_queue_is_called_once_each(engine, monkeypatch):
    """The rest is read page by page, while results are recorded and more is enqueued."""
    monkeypatch.setattr(leader_executor, "SIZE_MAX", 200)
    engine.publish("ledger", scope="cluster", concurrency=30)
    ids = [one for _ in range(6) for one in engine.outbox.enqueue(100, "ledger")]
    settings = read_settings(
        database_url=engine.database.url_as("executor"),
        concurrency=30,
        schedule_refresh_seconds=0.05,
    )
    async with Instance(settings) as instance:
        await until(lambda: len(engine.sandbox.requests()) > 100)
        ids += engine.outbox.enqueue(300, "ledger")
        await engine.until_status(ids)
        missed = instance.metrics.registry.get_sample_value(
            "leasehold_schedule_missed_total",
            {"worker_id": instance.worker_id, "lease_name": CLUSTER_LEASE},
        )
    assert not missed
    assert all(engine.outbox.states(one) == ["DISPATCHED"] for one in ids)
    assert len(engine.sandbox.requests()) == len(ids)
