"""A leader's memory: the newest version counts, the first is taken first, and it is bounded."""

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
            "last_modified_at": NOW + timedelta(microseconds=version),
            "horizon": NOW,
            "wait_seconds": due_seconds,
        }
        | changes
    )


def schedule_of(size_max, *targets):
    schedule = DueQueue(size_max)
    schedule.serve(targets or ("sms",))
    for target in targets or ("sms",):
        schedule.forget(target)  # as if read from an empty database
    return schedule


def numbers(rows):
    return [one.intent_id.int for one in rows]


def numbers_in(schedule):
    return sorted(schedule.numbers())


def test_due_is_counted_from_when_the_answer_was_here():
    schedule = schedule_of(10)
    schedule.put(row(1, due_seconds=5), received_at=100.0)
    assert schedule.take(104.9, ROOM, 10) == []
    assert schedule.seconds_until_due(104.0) == pytest.approx(1.0)
    assert numbers(schedule.take(105.0, ROOM, 10)) == [1]


def test_same_row_seen_twice_is_taken_once():
    schedule = schedule_of(10)
    schedule.put(row(1), 0)
    schedule.put(row(1), 0)
    assert numbers(schedule.take(0, ROOM, 10)) == [1]
    assert schedule.take(0, ROOM, 10) == []


def test_newest_version_counts_in_whatever_order_they_come():
    schedule = schedule_of(10)
    schedule.put(row(1, due_seconds=60, version=2), 0)
    schedule.put(row(1, due_seconds=0, version=1), 0)
    assert schedule.take(1, ROOM, 10) == []
    assert numbers(schedule.take(60, ROOM, 10)) == [1]


@pytest.mark.parametrize("changes", [{"due_at": None, "wait_seconds": None}, {"begun_at": NOW}])
def test_what_is_held_or_begun_is_not_to_be_done(changes):
    schedule = schedule_of(10)
    schedule.put(row(1), 0)
    schedule.put(row(1, version=1, **changes), 0)
    assert schedule.take(1, ROOM, 10) == []
    assert len(schedule) == 0


def test_what_was_due_longest_goes_first_whichever_target_it_is_for():
    schedule = schedule_of(40, "sms", "mail")
    for number, target in [(1, "sms"), (2, "mail"), (3, "mail"), (4, "sms"), (5, "mail")]:
        schedule.put(row(number, due_seconds=number - 10, target=target), 0)
    assert numbers(schedule.take(0, ROOM, 4)) == [1, 2, 3, 4]
    assert numbers(schedule.take(0, ROOM, 4)) == [5]


@pytest.mark.parametrize("due_seconds", [0, 60])
def test_row_that_changes_without_end_takes_the_room_of_one(due_seconds):
    schedule = schedule_of(20)
    for version in range(1000):
        schedule.put(row(1, due_seconds=due_seconds, version=version), 0)
    queue = schedule._queues["sms"]
    assert len(schedule) == 1
    assert len(queue.ready) + len(queue.waiting) <= 40
    assert [one.last_modified_at for one in schedule.take(60, ROOM, 10)] == [
        NOW + timedelta(microseconds=999)
    ]


def test_higher_priority_goes_first_and_a_full_target_does_not_hold_up_another():
    schedule = schedule_of(40, "sms", "mail", "full")
    for number, priority, target in [(1, 2, "sms"), (2, 0, "sms"), (3, 1, "mail"), (4, 0, "full")]:
        schedule.put(row(number, priority=priority, target=target), 0)
    assert numbers(schedule.take(0, ROOM, 2)) == [2, 3]
    assert numbers(schedule.take(0, ROOM, 2)) == [1]
    assert numbers(schedule.take(0, ROOM | {"full": 1}, 2)) == [4]


def test_target_gives_no_more_than_it_has_room_for():
    schedule = schedule_of(10)
    for number in range(5):
        schedule.put(row(number), 0)
    assert numbers(schedule.take(0, {"sms": 2}, 10)) == [0, 1]


def test_full_target_leaves_out_and_is_read_when_little_is_left():
    schedule = schedule_of(2)
    for number in range(3):
        schedule.put(row(number, due_seconds=number), 0)
    assert (len(schedule), schedule.partial(), schedule.lacking()) == (2, {"sms"}, [])
    schedule.take(2, ROOM, 2)
    assert schedule.lacking() == ["sms"]


def test_full_target_is_read_at_once_when_something_urgent_was_left_out():
    schedule = schedule_of(2)
    schedule.put(row(1), 0)
    schedule.put(row(2), 0)
    schedule.take(0, {}, 1)
    schedule.put(row(3, priority=0), 0)
    assert schedule.lacking() == ["sms"]


def test_flood_for_one_target_leaves_room_for_the_others():
    schedule = schedule_of(20, "sms", "mail")
    for number in range(50):
        schedule.put(row(number), 0)
    schedule.put(row(99, target="mail"), 0)
    assert len(schedule) == 11
    assert numbers(schedule.take(0, {"mail": 5}, 10)) == [99]
    assert schedule.lacking() == []


def test_target_that_is_new_is_read_and_one_that_is_gone_is_forgotten():
    schedule = schedule_of(20, "sms")
    schedule.put(row(1), 0)
    schedule.put(row(2, target="mail"), 0)  # nobody serves it yet
    schedule.serve(["sms", "mail"])
    assert (numbers_in(schedule), schedule.lacking()) == ([1], ["mail"])
    schedule.serve(["mail"])
    assert (numbers_in(schedule), schedule.lacking()) == ([], ["mail"])


def test_target_learnt_anew_keeps_nothing_of_what_it_had():
    schedule = schedule_of(20, "sms", "mail")
    schedule.put(row(1), 0)
    schedule.put(row(2, target="mail"), 0)
    schedule.take(0, {}, 1)
    schedule.forget("sms")
    schedule.put(row(3), 0)
    assert numbers(schedule.take(0, ROOM, 10)) == [2, 3]


def read(schedule, rows, limit):
    """As an executor learns of a window."""
    schedule.put_all(rows, 0)
    schedule.was_read(rows, limit)


def position(one):
    return (one.due_at, one.intent_id)


def test_target_is_read_on_from_its_last_row_when_a_page_is_left():
    schedule = schedule_of(40)
    rows = [row(number, due_seconds=number - 100) for number in range(schedule.page)]
    read(schedule, rows, schedule.page)
    schedule.put(row(99), 0)
    assert (schedule.running_low(), schedule.partial()) == ({}, {"sms"})
    schedule.take(0, ROOM, 1)
    after = {"sms": {1: position(rows[-1])}}
    assert (schedule.running_low(), schedule.lacking()) == (after, [])
    schedule.reads_on("sms")
    assert schedule.running_low() == {}
    more = [row(number, due_seconds=number - 100) for number in range(10, 13)]
    read(schedule, more, schedule.page)  # fewer than were asked for: that is all
    assert (schedule.partial(), schedule.lacking(), len(schedule)) == (set(), [], 13)


def test_only_the_priorities_of_which_there_is_more_are_read_on():
    schedule = schedule_of(8)
    rows = [*(row(number, priority=2) for number in range(2)), row(9, priority=3)]
    read(schedule, rows, 2)
    schedule.take(0, ROOM, 3)
    assert schedule.running_low() == {"sms": {2: position(rows[1])}}


def test_row_that_did_not_fit_while_the_rest_was_read_is_not_lost():
    """It may come before where the reading ended, so that one from the beginning has to find it."""
    schedule = schedule_of(4)
    first = [row(0, due_seconds=-9)]
    read(schedule, first, 1)
    schedule.take(0, ROOM, 1)
    [after] = schedule.running_low().values()
    assert after == {1: position(first[0])}
    schedule.reads_on("sms")
    for number in range(1, 6):
        schedule.put(row(number, due_seconds=-1), 0)
    read(schedule, [row(8, due_seconds=-8)], 1)
    assert len(schedule) == 4
    schedule.take(0, ROOM, 4)
    assert (schedule.lacking(), schedule.running_low()) == (["sms"], {})


def test_what_is_read_of_a_target_that_is_served_no_more_is_nothing_to_do():
    schedule = schedule_of(40)
    read(schedule, [row(number, target="gone") for number in range(10)], 10)
    assert (len(schedule), schedule.partial()) == (0, set())


ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(-3, 3), st.integers(0, 3)),
    max_size=40,
    unique_by=lambda one: one[0],
)


@given(st.lists(ROWS, max_size=4), st.integers(4, 60), st.integers(0, 20))
def test_many_rows_are_learnt_as_they_are_one_by_one(readings, size_max, taken):
    together, apart = schedule_of(size_max), schedule_of(size_max)
    for reading in readings:
        rows = [row(number, due, version, priority) for number, version, due, priority in reading]
        rows.sort(key=lambda one: (one.priority, one.due_at, one.intent_id))
        together.put_all(rows, 0)
        # What is not due is learnt first where many are, which shows where not all of them fit.
        for one in sorted(rows, key=lambda one: one.wait_seconds <= 0):
            apart.put(one, 0)
        assert numbers(together.take(0, ROOM, taken)) == numbers(apart.take(0, ROOM, taken))
        assert numbers_in(together) == numbers_in(apart)
    assert together.partial() == apart.partial()


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 20), st.integers(0, 5), st.integers(0, 3)),
        max_size=60,
    )
)
def test_every_row_is_taken_once_in_its_newest_version(puts):
    schedule = schedule_of(100)
    newest = {}
    for number, version, due, priority in puts:
        given_row = row(number, due, version, priority)
        schedule.put(given_row, 0)
        if number not in newest or version > newest[number].last_modified_at.microsecond:
            newest[number] = given_row
    taken = schedule.take(1000, ROOM, 1000)
    assert sorted(numbers(taken)) == sorted(newest)
    assert {one.intent_id.int: one for one in taken} == newest
    order = [(one.priority, one.due_at) for one in taken]
    assert order == sorted(order)
