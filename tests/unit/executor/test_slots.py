"""The items in flight, and the slots that they take."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain.lease import TrustWindow
from leasehold.executor.item import ItemState, Slot, claimed_items
from leasehold.executor.slots import TURN_SECONDS, SlotPool, Slots
from tests.support.claimed_item import claim_of

TRUST = TrustWindow.counted_from(0.0, 30.0)


def take(slots, number, token=1):
    [item] = claimed_items([claim_of(number, token)], None, TRUST, 30.0, 0.0)
    slots.take([item])
    return item


def test_new_claim_of_an_intent_keeps_its_slot_when_the_old_one_is_let_go():
    slots = Slots("worker-1", SlotPool(10))
    given_back = take(slots, 7, token=1)
    again = take(slots, 7, token=2)
    slots.let_go([given_back])
    assert (slots.in_flight("sms"), slots.free) == (1, 9)
    slots.let_go([again])
    assert (slots.in_flight("sms"), slots.free) == (0, 10)


def test_item_is_let_go_once_and_the_callback_learns_which():
    slots, freed = Slots("worker-1", SlotPool(10)), []
    slots.on_free(freed.append)
    first, second = take(slots, 7), take(slots, 8)
    slots.let_go([first])
    slots.let_go([first, second])
    assert freed == [[first], [second]]
    assert {first.state, second.state} == {ItemState.DONE}
    assert (slots.in_flight("sms"), slots.free) == (0, 10)


def test_slot_that_is_only_reserved_is_not_busy():
    slots = Slots("worker-1", SlotPool(2))
    item = take(slots, 7)
    with slots.reserved(1, {"sms": 1}):
        assert (slots.free, slots.are_busy) == (0, False)
    take(slots, 8)
    assert slots.are_busy
    slots.let_go([item])
    assert not slots.are_busy


def test_lost_item_stays_lost_and_is_counted_once():
    slots = Slots("worker-1", SlotPool(10))
    item = take(slots, 7)
    assert not item.trust.is_over(1.0)
    assert (slots.lose([item]), slots.lose(slots.all())) == (1, 0)
    assert item.is_lost
    assert item.trust.is_over(1.0)
    assert not item.trust.may_start(1.0)
    assert slots.renewable() == []


async def test_aborted_call_keeps_its_slot_until_it_ends_and_then_wakes_the_executor():
    pool, freed, may_end = SlotPool(1), [], asyncio.Event()
    slots = Slots("worker-1", pool)

    async def ignore_cancellation():
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            await may_end.wait()

    slots.on_free(freed.append)
    call = asyncio.create_task(ignore_cancellation())
    await asyncio.sleep(0)
    slots.keep_slot(call)
    await asyncio.sleep(0)
    assert (pool.stuck_calls, slots.free, freed) == (1, 0, [])
    slots.wait_for_one()
    may_end.set()
    await call
    await asyncio.sleep(0)
    assert (pool.stuck_calls, slots.free, freed) == (0, 1, [[]])


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def take_many(slots, count):
    items = claimed_items(map(claim_of, range(count)), None, TRUST, 30.0, 0.0)
    slots.take(items)
    return items


def test_slots_that_others_leave_unused_are_usable_by_one_executor():
    pool = SlotPool(10)
    busy, idle = Slots("worker-1", pool), Slots("worker-1", pool)
    assert (busy.free, idle.free) == (10, 10)
    take_many(busy, 10)
    assert (busy.free, idle.free) == (0, 0)


def test_slots_that_are_reserved_during_a_claim_are_not_given_twice():
    pool = SlotPool(10)
    first, second = Slots("worker-1", pool), Slots("worker-1", pool)
    with first.reserved(8, {"sms": 8}):
        assert (first.free, second.free) == (2, 2)
        take_many(first, 3)
    assert (first.free, second.free) == (7, 7)


def test_executor_above_its_share_leaves_slots_to_one_that_waits():
    pool, woken = SlotPool(10), []
    greedy, starved = Slots("worker-1", pool), Slots("worker-1", pool)
    starved.on_free(woken.append)
    items = take_many(greedy, 10)
    assert starved.free == 0
    starved.wait_for_one()
    for ended in range(1, 6):
        greedy.let_go(items[ended - 1 : ended])
        assert len(woken) == ended
        assert (greedy.free, starved.free) == (0, 1)
        take_many(starved, 1)
        starved.wait_for_one()
    greedy.let_go(items[5:6])  # now each has its share
    greedy.wait_for_one()
    assert (greedy.free, starved.free) == (1, 0)


def test_of_more_executors_than_slots_the_one_that_waits_longest_is_next():
    pool = SlotPool(1)
    first, second, third = executors = [Slots("worker-1", pool) for _ in range(3)]
    items = take_many(first, 1)
    second.wait_for_one()
    third.wait_for_one()
    first.let_go(items)
    first.wait_for_one()
    assert [one.free for one in executors] == [0, 1, 0]
    items = take_many(second, 1)
    second.let_go(items)
    second.wait_for_one()
    assert [one.free for one in executors] == [0, 0, 1]


def test_executor_that_does_not_come_for_its_slot_does_not_keep_it_from_others(clock):
    pool = SlotPool(2, clock)
    busy, absent = Slots("worker-1", pool), Slots("worker-1", pool)
    items = take_many(busy, 2)
    absent.wait_for_one()
    busy.let_go(items[:1])
    assert busy.free == 0
    clock.now = 2 * TURN_SECONDS
    assert busy.free == 1


async def test_leader_session_that_ends_frees_all_slots_but_those_of_calls_that_go_on():
    pool, may_end = SlotPool(10), asyncio.Event()
    slots = Slots("worker-1", pool)
    items = take_many(slots, 3)
    items[0].task = asyncio.create_task(may_end.wait())
    slots.close()
    assert (pool.used, pool.stuck_calls, pool.in_flight["sms"]) == (1, 1, 0)
    may_end.set()
    await items[0].task
    await asyncio.sleep(0)
    assert pool.used == 0


def test_slot_is_free_when_its_call_has_ended_but_the_item_stays_in_flight():
    slots = Slots("worker-1", SlotPool(1))
    item = take(slots, 7)
    assert slots.free == 0
    slots.end_call(item)
    assert (slots.free, slots.in_flight("sms"), slots.all()) == (1, 0, [item])
    slots.end_call(item)
    slots.let_go([item])
    assert (slots.free, slots.all()) == (1, [])


def test_no_slot_is_given_out_while_too_many_results_wait_for_the_database():
    pool, freed = SlotPool(1), []
    slots = Slots("worker-1", pool)
    waiting = []
    while slots.free:
        waiting.append(take(slots, len(waiting)))
        slots.end_call(waiting[-1])
    assert len(waiting) == pool.results_max
    slots.wait_for_one()
    slots.on_free(freed.append)
    slots.let_go(waiting[:1])
    assert slots.free == 1
    assert [] in freed, "who waits for a slot is woken"


def test_executor_owes_the_slots_beyond_its_share_to_those_that_wait():
    pool = SlotPool(10)
    streams, items = Slots("streams", pool), Slots("items", pool)
    take_many(streams, 10)
    assert streams.owed == 0
    items.wait_for_one()
    assert (streams.owed, items.owed) == (5, 0)
    take_many(items, 3)
    items.wait_for_one()
    assert streams.owed == 2


def test_slot_passes_from_an_ended_item_to_the_next_without_becoming_free(clock):
    pool, woken = SlotPool(2, clock), []
    streams, items = Slots("streams", pool), Slots("items", pool)
    items.on_free(woken.append)
    ended, _ = take_many(streams, 2)
    [following] = claimed_items([claim_of(7)], None, TRUST, 30.0, 0.0)
    items.wait_for_one()
    streams.let_go([ended], followed_by=[following])
    assert (pool.used, pool.in_flight["sms"], woken) == (2, 2, [])
    assert following.has_slot
    assert not ended.has_slot


def test_items_of_one_target_count_for_it_in_every_scope():
    pool = SlotPool(10)
    items, streams = Slots("worker-1", pool), Slots("worker-1", pool)
    take_many(items, 3)
    with items.reserved(2, {"sms": 2}):
        # Also for itself: it may claim streams while it looks again at others.
        assert [one.in_flight_or_claimed("sms") for one in (items, streams)] == [5, 5]
        with items.reserved(1, {"sms": 1, "mail": 1}):
            assert items.in_flight_or_claimed("sms") == 6
        assert (items.in_flight("sms"), streams.in_flight("sms")) == (3, 3)
    assert [one.in_flight_or_claimed("sms") for one in (items, streams)] == [3, 3]


def test_follower_that_shares_a_call_counts_no_slot_and_no_result():
    pool = SlotPool(3)
    slots = Slots("worker-1", pool)
    first, sharing, own = claimed_items(map(claim_of, range(3)), None, TRUST, 30.0, 0.0)
    sharing.slot = Slot.SHARED
    first.followers = [sharing, own]
    slots.take([first])
    assert (len(slots), pool.used) == (3, 2)
    slots.let_go([first, sharing, own])
    assert (len(slots), pool.used, slots.free) == (0, 0, 3)
