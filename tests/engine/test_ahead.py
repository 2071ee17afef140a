"""What a leader gets ready ahead of time holds up nobody, and is not kept for long."""

from __future__ import annotations

from leasehold import Instance, read_settings
from leasehold.executor.leader import executor as scheduled
from tests.support.elections import start_leader
from tests.support.engine import until
from tests.support.outbox import CLUSTER_LEASE

LONG = {"cluster_lease_seconds": "60", "cluster_renew_seconds": "20"}


def marked(engine):
    """All calls that count as in flight."""
    rows = engine.database.execute("SELECT unnest(intent_ids) AS one FROM leasehold.call_marks")
    return {row["one"] for row in rows}


async def test_call_that_is_ready_and_cannot_begin_is_given_back_and_holds_up_nobody(engine):
    slow = {"scope": "cluster", "call_timeout_seconds": 20, "lease_seconds": 30}
    slow |= {"quarantine_seconds": 120}
    engine.publish("ledger", concurrency=2, **slow)
    engine.publish("book", **slow)
    await start_leader(engine, schedule_refresh_seconds="0.1", **LONG)
    # Then it knows that calls are short, and gets ready what will begin within a moment.
    await engine.until_status(engine.outbox.enqueue(20, "ledger"))
    engine.sandbox.set_faults(latency_ms=4000)
    ledger = set(engine.outbox.enqueue(8, "ledger"))
    await until(lambda: len(marked(engine) & ledger) > 2)
    assert len(marked(engine) & ledger) <= 2 * 2
    [book] = engine.outbox.enqueue(1, "book")
    await until(lambda: book in marked(engine))
    # Two are being called; what was ready beside them is not in flight any more.
    await until(lambda: len(marked(engine) & ledger) == 2)
    waiting = next(iter(ledger - marked(engine)))
    [row] = engine.outbox.call("operator", "cancel_intent", waiting, "ann", "a test")
    assert row["cancel_intent"] == "cancelled"
    assert set(engine.statuses(list(ledger - {waiting}))) == {"pending"}
    engine.sandbox.set_faults(latency_ms=0)
    await engine.until_status([*ledger - {waiting}, book])
    assert all(engine.outbox.states(one) == ["DISPATCHED"] for one in ledger - {waiting})


async def test_backlog_of_many_windows_is_done_once_each(engine, monkeypatch):
    """Read on beside the work, page by page, while results come in and more is handed in."""
    monkeypatch.setattr(scheduled, "SIZE_MAX", 200)
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
