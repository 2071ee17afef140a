"""The due queue: the newest version counts, the first is taken first, and it is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.intent import IntentId
from leasehold.executor.leader.due_queue import DueQueue
from leasehold.store.rows import DueRow

# The database's clock, which has nothing to do with ours.
NOW = datetime(2031, 5, 4, 12, tzinfo=UTC)
ROOM = {"sms": 100, "mail": 100}


def row(number, due_seconds=0.0, version=0, priority=1, target="sms", **changes):
    return DueRow(
        **dict.fromkeys(DueRow._fields)
        | {
            "intent_id": IntentId(UUID(int=number)),
            "target": target,
            "priority": priority,
            "due_at": NOW + timedelta(seconds=due_seconds),
            "begun_at": None,
            "version": NOW + timedelta(microseconds=version),
            "wait_seconds": due_seconds,
        }
        | changes
    )


def queue_of(size_max, *targets):
    """A queue that was read from an empty database."""
    queue = DueQueue(size_max, fence=None, trust=None)
    queue.serve(targets or ("sms",))
    queue.relearn(targets or ("sms",), [], 0, 1000)
    return queue


def numbers(items):
    return [item.intent_no for item in items]


def test_due_time_is_counted_from_the_arrival_of_the_row():
    queue = queue_of(10)
    queue.learn(row(1, due_seconds=5), received_at=100.0)
    assert queue.take(104.9, ROOM, 10) == []
    assert queue.seconds_until_due(104.0) == pytest.approx(1.0)
    assert numbers(queue.take(105.0, ROOM, 10)) == [1]


def test_same_row_seen_twice_is_taken_once():
    queue = queue_of(10)
    queue.learn(row(1), 0)
    queue.learn(row(1), 0)
    assert numbers(queue.take(0, ROOM, 10)) == [1]
    assert queue.take(0, ROOM, 10) == []


def test_newest_version_counts_in_whatever_order_they_come():
    queue = queue_of(10)
    queue.learn(row(1, due_seconds=60, version=2), 0)
    queue.learn(row(1, due_seconds=0, version=1), 0)
    assert queue.take(1, ROOM, 10) == []
    assert numbers(queue.take(60, ROOM, 10)) == [1]


@pytest.mark.parametrize("changes", [{"due_at": None, "wait_seconds": None}, {"begun_at": NOW}])
def test_row_that_is_held_or_begun_is_not_called(changes):
    queue = queue_of(10)
    queue.learn(row(1), 0)
    queue.learn(row(1, version=1, **changes), 0)
    assert queue.take(1, ROOM, 10) == []
    assert len(queue) == 0


def test_item_due_longest_goes_first_whatever_its_target():
    queue = queue_of(40, "sms", "mail")
    for number, target in [(1, "sms"), (2, "mail"), (3, "mail"), (4, "sms"), (5, "mail")]:
        queue.learn(row(number, due_seconds=number - 10, target=target), 0)
    assert numbers(queue.take(0, ROOM, 4)) == [1, 2, 3, 4]
    assert numbers(queue.take(0, ROOM, 4)) == [5]


@pytest.mark.parametrize("due_seconds", [0, 60])
def test_row_that_changes_forever_takes_the_room_of_one(due_seconds):
    queue = queue_of(20)
    for version in range(1000):
        queue.learn(row(1, due_seconds=due_seconds, version=version), 0)
    places = queue._queues["sms"]
    assert len(queue) == 1
    assert len(places.ready) + len(places.waiting) <= 40
    assert [item.row.version for item in queue.take(60, ROOM, 10)] == [
        NOW + timedelta(microseconds=999)
    ]


def test_higher_priority_goes_first_and_a_full_target_does_not_hold_up_another():
    queue = queue_of(40, "sms", "mail", "full")
    for number, priority, target in [(1, 2, "sms"), (2, 0, "sms"), (3, 1, "mail"), (4, 0, "full")]:
        queue.learn(row(number, priority=priority, target=target), 0)
    assert numbers(queue.take(0, ROOM, 2)) == [2, 3]
    assert numbers(queue.take(0, ROOM, 2)) == [1]
    assert numbers(queue.take(0, ROOM | {"full": 1}, 2)) == [4]


def test_no_more_is_taken_of_a_target_than_it_has_room_for():
    queue = queue_of(10)
    for number in range(5):
        queue.learn(row(number), 0)
    assert numbers(queue.take(0, {"sms": 2}, 10)) == [0, 1]


def test_full_target_is_read_again_when_little_is_left():
    queue = queue_of(2)
    for number in range(3):
        queue.learn(row(number, due_seconds=number), 0)
    assert (len(queue), queue.partial(), queue.lacking()) == (2, {"sms"}, [])
    queue.take(2, ROOM, 2)
    assert queue.lacking() == ["sms"]


def test_full_target_is_read_at_once_when_something_urgent_did_not_fit():
    queue = queue_of(2)
    queue.learn(row(1), 0)
    queue.learn(row(2), 0)
    queue.take(0, {}, 1)
    queue.learn(row(3, priority=0), 0)
    assert queue.lacking() == ["sms"]


def test_flood_for_one_target_leaves_room_for_the_others():
    queue = queue_of(20, "sms", "mail")
    for number in range(50):
        queue.learn(row(number), 0)
    queue.learn(row(99, target="mail"), 0)
    assert len(queue) == 11
    assert numbers(queue.take(0, {"mail": 5}, 10)) == [99]
    assert queue.lacking() == []


def test_new_target_is_read_and_one_that_is_gone_is_dropped():
    queue = queue_of(20, "sms")
    queue.learn(row(1), 0)
    queue.learn(row(2, target="mail"), 0)  # nobody serves it yet
    queue.serve(["sms", "mail"])
    assert (sorted(queue.known()), queue.lacking()) == ([1], ["mail"])
    queue.serve(["mail"])
    assert (sorted(queue.known()), queue.lacking()) == ([], ["mail"])


def test_rows_not_found_by_a_read_from_the_beginning_are_dropped():
    queue = queue_of(20, "sms", "mail")
    queue.learn(row(1), 0)
    queue.learn(row(2, target="mail"), 0)
    queue.take(0, {}, 1)
    queue.relearn(["sms"], [row(3)], 0, 1000)
    assert numbers(queue.take(0, ROOM, 10)) == [2, 3]


def read(queue, rows, limit):
    queue.learn_page(rows, 0, limit)


def position(one):
    return (one.due_at, one.intent_id)


def test_target_is_read_on_from_its_last_row_when_a_page_is_left():
    queue = queue_of(40)
    rows = [row(number, due_seconds=number - 100) for number in range(queue.page)]
    read(queue, rows, queue.page)
    queue.learn(row(99), 0)
    assert (queue.running_low(), queue.partial()) == ({}, {"sms"})
    queue.take(0, ROOM, 1)
    after = {"sms": {1: position(rows[-1])}}
    assert (queue.running_low(), queue.lacking()) == (after, [])
    queue.read_on(["sms"])
    assert queue.running_low() == {}
    more = [row(number, due_seconds=number - 100) for number in range(10, 13)]
    read(queue, more, queue.page)  # fewer than were asked for: that is all
    assert (queue.partial(), queue.lacking(), len(queue)) == (set(), [], 13)


def test_only_the_priorities_of_which_there_is_more_are_read_on():
    queue = queue_of(8)
    rows = [*(row(number, priority=2) for number in range(2)), row(9, priority=3)]
    read(queue, rows, 2)
    queue.take(0, ROOM, 3)
    assert queue.running_low() == {"sms": {2: position(rows[1])}}


def test_row_that_did_not_fit_while_the_rest_was_read_is_not_lost():
    """It may come before where the reading ended, so that one from the beginning has to find it."""
    queue = queue_of(4)
    first = [row(0, due_seconds=-9)]
    read(queue, first, 1)
    queue.take(0, ROOM, 1)
    [after] = queue.running_low().values()
    assert after == {1: position(first[0])}
    queue.read_on(["sms"])
    for number in range(1, 6):
        queue.learn(row(number, due_seconds=-1), 0)
    read(queue, [row(8, due_seconds=-8)], 1)
    assert len(queue) == 4
    queue.take(0, ROOM, 4)
    assert (queue.lacking(), queue.running_low()) == (["sms"], {})


def test_rows_of_a_target_that_is_no_longer_served_are_ignored():
    queue = queue_of(40)
    read(queue, [row(number, target="gone") for number in range(10)], 10)
    assert (len(queue), queue.partial()) == (0, set())


ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(-3, 3), st.integers(0, 3)),
    max_size=40,
    unique_by=lambda one: one[0],
)


@given(st.lists(ROWS, max_size=4), st.integers(4, 60), st.integers(0, 20))
def test_rows_learnt_together_and_one_by_one_lead_to_the_same_queue(readings, size_max, taken):
    together, apart = queue_of(size_max), queue_of(size_max)
    for reading in readings:
        rows = [row(number, due, version, priority) for number, version, due, priority in reading]
        rows.sort(key=lambda one: (one.priority, one.due_at, one.intent_id))
        together.learn_page(rows, 0, 1000)
        # What is not due is learnt first where many are, which shows where not all of them fit.
        for one in sorted(rows, key=lambda one: one.wait_seconds <= 0):
            apart.learn(one, 0)
        assert numbers(together.take(0, ROOM, taken)) == numbers(apart.take(0, ROOM, taken))
        assert together.known() - apart.known() == apart.known() - together.known() == set()
    assert together.partial() == apart.partial()


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 20), st.integers(0, 5), st.integers(0, 3)),
        max_size=60,
    )
)
def test_every_row_is_taken_once_in_its_newest_version(puts):
    queue = queue_of(100)
    newest = {}
    for number, version, due, priority in puts:
        given_row = row(number, due, version, priority)
        queue.learn(given_row, 0)
        if number not in newest or version > newest[number].version.microsecond:
            newest[number] = given_row
    taken = queue.take(1000, ROOM, 1000)
    assert sorted(numbers(taken)) == sorted(newest)
    assert {item.intent_no: item.row for item in taken} == newest
    order = [(item.row.priority, item.row.due_at) for item in taken]
    assert order == sorted(order)
