"""A second terminal row that only the unique index stops is logged and counted."""

from __future__ import annotations

import pytest

from leasehold.coordination.reaper import Reaper
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted
from leasehold.domain.timing import Timings
from leasehold.executor.completer import Completer
from leasehold.executor.fences import ClaimFence
from leasehold.executor.item import claimed_items
from leasehold.executor.slots import SlotPool, Slots
from leasehold.observe.metrics import Metrics
from tests.support.lease_holder import claim_streams

pytestmark = pytest.mark.one_server

END_BY_HAND = (
    "INSERT INTO leasehold.outbox_attempts"
    " (intent_id, attempt_no, state, holder, started_at, finished_at)"
    " VALUES (%s, 1, 'DISPATCHED', 'by hand', now(), now())"
)


@pytest.fixture
def metrics():
    return Metrics("worker-1")


def guard_hits(metrics):
    labels = {"worker_id": "worker-1"}
    return metrics.registry.get_sample_value("leasehold_terminal_guard_hit_total", labels)


def hit_intents(caplog):
    """Return the intents of the log lines `terminal_guard_hit`."""
    found = [vars(one).get("leasehold_fields", {}) for one in caplog.records]
    return [one["intent_id"] for one in found if one.get("event") == "terminal_guard_hit"]


async def test_result_that_would_end_an_intent_twice_is_counted_and_logged(
    outbox, stores, metrics, caplog
):
    outbox.publish()
    ids = outbox.enqueue(2)
    claimed = await stores.executor.claim_outbox_batch(2, "worker-1", 60.0, ["sms"])
    outbox.database.owner_execute(END_BY_HAND, [ids[0]])
    slots = Slots("worker-1", SlotPool(10))
    completer = Completer(slots, metrics, on_error=lambda _: None)
    fence = ClaimFence(stores.executor, "worker-1")
    trust = TrustWindow.counted_from(slots.clock(), 60.0)
    items = claimed_items(claimed, fence, trust, 60.0, slots.clock())
    slots.take(items)
    for item in items:
        item.call()
        completer.complete(item, Accepted(), 0.0)
    for _ in range(3):
        await completer.step()
    assert hit_intents(caplog) == [str(ids[0])]
    assert guard_hits(metrics) == 1
    assert [outbox.states(one) for one in ids] == [["DISPATCHED"], ["DISPATCHED"]]


async def test_repair_that_would_end_an_intent_twice_is_counted_and_logged(
    outbox, stores, metrics, caplog
):
    outbox.publish(attempts_max=2)
    [intent_id] = outbox.enqueue()
    outbox.claim("dead")
    outbox.database.owner_execute(END_BY_HAND, [intent_id])
    outbox.expire_claims()
    await Reaper(stores.executor, "worker-1", Timings, metrics).step()
    assert hit_intents(caplog) == [str(intent_id)]
    assert guard_hits(metrics) == 1
    assert outbox.states(intent_id) == ["DISPATCHED"]
    assert outbox.pending(intent_id) is None


async def test_deadline_that_would_end_an_intent_twice_is_counted_and_logged(
    outbox, stores, metrics, caplog
):
    outbox.publish()
    [intent_id] = outbox.enqueue(deadline_seconds=60)
    outbox.database.owner_execute(END_BY_HAND, [intent_id])
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
    )
    await Reaper(stores.executor, "worker-1", Timings, metrics).step()
    assert hit_intents(caplog) == [str(intent_id)]
    assert guard_hits(metrics) == 1
    assert outbox.states(intent_id) == ["DISPATCHED"]


def test_stream_goes_on_behind_a_head_that_was_finished_and_is_past_its_deadline(outbox):
    outbox.publish("pay", scope="stream")
    [head] = outbox.enqueue(target="pay", stream="s", deadline_seconds=60)
    [following] = outbox.enqueue(target="pay", stream="s")
    outbox.database.owner_execute(END_BY_HAND, [head])
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() WHERE intent_id = %s",
        [head],
    )
    outbox.call("executor", "repair_missed_deadlines", 10, "reaper")
    assert outbox.pending(head) is None
    [holder] = claim_streams(outbox)
    assert [row["intent_id"] for row in holder.heads] == [following]
