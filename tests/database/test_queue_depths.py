"""Queues with a limit are counted by one instance at a time, up to the limit, and not too often."""

from __future__ import annotations

import pytest

from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server


def begin(outbox):
    return outbox.call("readonly", "begin_watch_turn", "depths")[0]["begin_watch_turn"]


def record(outbox, turn_no):
    return outbox.call("readonly", "record_queue_depths", turn_no)[0]["record_queue_depths"]


def test_depth_counts_unfinished_intents_of_every_scope_up_to_its_limit(outbox):
    outbox.publish("items", pending_max=100)
    outbox.publish("streams", scope="stream", pending_max=100)
    outbox.publish("clusters", scope="cluster", pending_max=2)
    outbox.publish("idle", scope="cluster", pending_max=1)
    outbox.publish("unlimited")
    outbox.enqueue(5, target="items")
    outbox.enqueue(4, target="streams", stream="a")
    outbox.enqueue(3, target="clusters")
    outbox.enqueue(2, target="unlimited")
    outbox.complete(outbox.claim(batch_size=3, targets=["items"])[:1])
    expected = {"items": 4, "streams": 4, "clusters": 2, "idle": 0}
    assert outbox.count_depths() == expected, "claimed intents count, finished ones do not"


def test_second_instance_reads_what_the_first_has_counted(outbox):
    outbox.publish(pending_max=10)
    outbox.enqueue(3)
    record(outbox, begin(outbox))
    outbox.enqueue(1)
    assert begin(outbox) is None
    reader = outbox.as_role("readonly")
    [row] = reader.execute("SELECT target, depth FROM leasehold.queue_depths").fetchall()
    assert row == {"target": "sms", "depth": 3}


def test_count_that_failed_is_not_repeated_by_another_instance(outbox):
    outbox.publish(pending_max=10)
    begin(outbox)
    assert begin(outbox) is None
    outbox.end_pause("depths")
    late, current = 1, begin(outbox)
    assert record(outbox, late) is None
    assert record(outbox, current) is not None


def test_limit_is_counted_again_when_it_changes_and_forgotten_when_it_is_gone(outbox):
    outbox.publish(pending_max=2)
    outbox.enqueue(5)
    assert outbox.count_depths() == {"sms": 2}
    outbox.publish(pending_max=4)
    assert outbox.count_depths() == {"sms": 4}
    outbox.publish()
    assert outbox.count_depths() == {}


@pytest.mark.parametrize("value", [0, -1, "many", 1e300, 1_000_001])
def test_limit_that_nobody_can_use_does_not_stop_the_count_of_others(outbox, value):
    outbox.publish("odd", pending_max=value)
    outbox.publish(pending_max=2)
    outbox.enqueue(1)
    assert outbox.count_depths() == {"sms": 1}


def test_nothing_is_counted_for_five_seconds_if_no_target_has_a_limit(outbox):
    outbox.publish()
    assert record(outbox, begin(outbox)) == 5


def test_turn_without_a_number_is_refused(outbox):
    with refused("22023"):
        outbox.call("readonly", "record_queue_depths", None)
