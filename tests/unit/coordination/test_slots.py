"""The items in flight, and the slots that they take."""

from __future__ import annotations

import asyncio

from leasehold.coordination.item import ItemState, claimed_items
from leasehold.coordination.slots import Slots
from leasehold.domain.lease import TrustWindow
from tests.support.claimed_item import claim_of

TRUST = TrustWindow.counted_from(0.0, 30.0)


def take(slots, number, token=1):
    [item] = claimed_items([claim_of(number, token)], None, TRUST, 30.0, 0.0)
    slots.take([item])
    return item


def test_new_claim_of_an_intent_keeps_its_slot_when_the_old_one_is_let_go():
    slots = Slots("worker-1", 10)
    given_back = take(slots, 7, token=1)
    again = take(slots, 7, token=2)
    slots.let_go([given_back])
    assert (slots.in_flight("sms"), slots.free) == (1, 9)
    slots.let_go([again])
    assert (slots.in_flight("sms"), slots.free) == (0, 10)


def test_item_is_let_go_once_and_the_callback_learns_which():
    slots, freed = Slots("worker-1", 10), []
    slots.on_free(freed.append)
    first, second = take(slots, 7), take(slots, 8)
    slots.let_go([first])
    slots.let_go([first, second])
    assert freed == [[first], [second]]
    assert {first.state, second.state} == {ItemState.DONE}
    assert (slots.in_flight("sms"), slots.free) == (0, 10)


def test_lost_item_stays_lost_and_is_counted_once():
    slots = Slots("worker-1", 10)
    item = take(slots, 7)
    assert not item.trust.is_over(1.0)
    assert (slots.lose([item]), slots.lose(slots.all())) == (1, 0)
    assert item.is_lost
    assert item.trust.is_over(1.0)
    assert not item.trust.may_start(1.0)
    assert slots.renewable() == []


async def test_aborted_call_keeps_its_slot_until_it_ends_and_then_wakes_the_executor():
    slots, freed, may_end = Slots("worker-1", 10), [], asyncio.Event()

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
    assert (slots.stuck_calls, slots.free, freed) == (1, 9, [])
    may_end.set()
    await call
    await asyncio.sleep(0)
    assert (slots.stuck_calls, slots.free, freed) == (0, 10, [[]])
