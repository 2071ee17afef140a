"""A target that is saturated, slow or flooded does not affect the others."""

from __future__ import annotations

from tests.support.engine import until


async def test_saturated_target_is_paused_and_probed_while_another_works(engine):
    engine.publish("full", "keyed", retry={"first_seconds": 0.05, "longest_seconds": 0.05})
    engine.publish("free", "fenced")
    engine.sandbox.set_faults("keyed", throttle_rate=1, retry_after_seconds=1)
    full = engine.outbox.enqueue(30, "full")
    worker = engine.worker()
    opened = await worker.logged("breaker_changed")
    assert (opened["target"], opened["now"]) == ("full", "open")
    free = engine.outbox.enqueue(100, "free")
    await engine.until_status(free)
    refused = len(engine.sandbox.requests()) - 100
    # The calls that were in flight when it opened, and some probes: not all thirty.
    assert refused < 20
    assert "accepted" not in engine.statuses(full)
    engine.sandbox.set_faults()
    await engine.until_status(full)
    assert worker.lines("breaker_changed")[-1]["now"] == "closed"


async def test_absurd_retry_after_puts_an_intent_off_for_an_hour_at_most(engine):
    engine.publish("hour", "keyed")
    engine.publish("short", "fenced", retry={"retry_after_seconds_max": 20})
    engine.sandbox.set_faults(throttle_rate=1, retry_after_seconds=1_000_000)
    for target in ("hour", "short"):
        engine.outbox.enqueue(1, target)
    engine.worker()

    def waits():
        return engine.database.execute(
            "SELECT target, due_at - last_modified_at AS wait FROM leasehold.outbox_pending"
            " WHERE last_state = 'RETRYABLE' ORDER BY target"
        )

    await until(lambda: len(waits()) == 2)
    assert [row["wait"].total_seconds() for row in waits()] == [3600, 20]


async def test_flood_for_a_slow_target_does_not_starve_another(engine):
    engine.publish("slow", "keyed")
    engine.publish("quick", "fenced")
    engine.sandbox.set_faults("keyed", latency_ms=400)
    engine.outbox.enqueue(500, "slow")
    engine.worker(concurrency="4")
    await until(lambda: engine.sandbox.effects("keyed").effects)
    quick = engine.outbox.enqueue(20, "quick")
    await engine.until_status(quick)
    assert engine.sandbox.effects("keyed").effects < 250


async def test_target_is_called_no_more_often_than_its_rate(engine):
    engine.publish("slow", "keyed", rate_per_second=10)
    ids = engine.outbox.enqueue(30, "slow")
    engine.worker()
    await engine.until_status(ids)
    received = [entry.received_at for entry in engine.sandbox.requests()]
    # The first may start at once; each of the others waits a tenth of a second. On a busy machine,
    # the first may arrive late.
    assert received[-1] - received[0] >= 29 / 10 - 1


async def test_target_has_no_more_calls_at_once_than_its_contract_says(engine):
    engine.publish("narrow", "keyed", concurrency=2)
    engine.sandbox.set_faults(latency_ms=100)
    ids = engine.outbox.enqueue(10, "narrow")
    engine.worker()
    await engine.until_status(ids)
    # Every call lasts at least 0.1 s, so a third one within this time would be one too many.
    received = sorted(entry.received_at for entry in engine.sandbox.requests())
    assert all(third - first >= 0.1 for first, third in zip(received, received[2:], strict=False))


async def test_new_target_and_new_version_are_served_without_a_restart(engine):
    engine.publish("first")
    worker = engine.worker()
    await worker.started()
    old = engine.outbox.enqueue(1, "first", delay_seconds=1)
    engine.publish("first", "fenced", concurrency=3)
    engine.publish("second")
    new = engine.outbox.enqueue(2, "first")
    await engine.until_status(old + new + engine.outbox.enqueue(2, "second"))
    assert (engine.sandbox.effects("keyed").keys, engine.sandbox.effects("fenced").keys) == (3, 2)
