"""The items in flight, and the slots that they take."""

from __future__ import annotations

import asyncio

from leasehold.coordination.claims import Claims
from leasehold.coordination.item import ItemState, claimed_items
from leasehold.domain.lease import TrustWindow
from tests.support.claimed_item import claim_of

TRUST = TrustWindow.counted_from(0.0, 30.0)


def take(claims, number, token=1):
    [item] = claimed_items([claim_of(number, token)], None, TRUST, 30.0, 0.0)
    claims.take([item])
    return item


def test_new_claim_of_an_intent_keeps_its_slot_when_the_old_one_is_let_go():
    claims = Claims("worker-1", 10)
    given_back = take(claims, 7, token=1)
    again = take(claims, 7, token=2)
    claims.let_go([given_back])
    assert (claims.in_flight("sms"), claims.free_slots) == (1, 9)
    claims.let_go([again])
    assert (claims.in_flight("sms"), claims.free_slots) == (0, 10)


def test_item_is_let_go_once_and_the_callback_learns_which():
    claims, freed = Claims("worker-1", 10), []
    claims.on_free(freed.append)
    first, second = take(claims, 7), take(claims, 8)
    claims.let_go([first])
    claims.let_go([first, second])
    assert freed == [[first], [second]]
    assert {first.state, second.state} == {ItemState.DONE}
    assert (claims.in_flight("sms"), claims.free_slots) == (0, 10)


def test_lost_item_stays_lost_and_is_counted_once():
    claims = Claims("worker-1", 10)
    item = take(claims, 7)
    assert not item.trust.is_over(1.0)
    assert (claims.lose([item]), claims.lose(claims.all())) == (1, 0)
    assert item.is_lost
    assert item.trust.is_over(1.0)
    assert not item.trust.may_start(1.0)
    assert claims.renewable() == []


async def test_aborted_call_keeps_its_slot_until_it_ends_and_then_wakes_the_executor():
    claims, freed, may_end = Claims("worker-1", 10), [], asyncio.Event()

    async def ignore_cancellation():
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            await may_end.wait()

    claims.on_free(freed.append)
    call = asyncio.create_task(ignore_cancellation())
    await asyncio.sleep(0)
    claims.keep_slot(call)
    await asyncio.sleep(0)
    assert (claims.stuck_calls, claims.free_slots, freed) == (1, 9, [])
    may_end.set()
    await call
    await asyncio.sleep(0)
    assert (claims.stuck_calls, claims.free_slots, freed) == (0, 10, [[]])
