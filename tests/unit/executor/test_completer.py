"""The completer: results on their way to the ledger."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.errors import (
    DatabaseUnavailable,
    InvalidCompletionState,
    LeaseLost,
    Unavailable,
)
from leasehold.domain.intent import AttemptState
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted, Rejected, Submitted
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor.completer import Completer
from leasehold.executor.fences import GIVEN_BACK_MAX, Written
from leasehold.executor.item import claimed_items
from leasehold.executor.slots import SlotPool, Slots
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from leasehold.store.rows import Recorded
from tests.support.claimed_item import NOW, claim_of

APPLIED, SUBMITTED = RecordVerdict.APPLIED, AttemptState.SUBMITTED
LOCKED = RecordVerdict.LOCKED


class RecordingFence:
    """A fence without a database, which notes what it is asked to write."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX

    def __init__(self, events, holder_id="worker-1"):
        self.events = events
        self.holder_id = holder_id

    def is_about_one_result(self, error):
        return isinstance(error, InvalidCompletionState)

    async def record(self, items):
        self.events.append(f"sent {len(items)}")
        return Written()


class RefusingFence(RecordingFence):
    """Refuses every batch in which something was not accepted."""

    async def record(self, items):
        await super().record(items)
        others = [one for one in items if not isinstance(one.outcome, Accepted)]
        if others and len(items) > 1:
            raise InvalidCompletionState("one of them")
        return Written()


class FailingFence(RecordingFence):
    def __init__(self, events, error):
        super().__init__(events)
        self.error = error

    async def record(self, items):
        await super().record(items)
        raise self.error


class LockedFence(RecordingFence):
    """Gives nothing back at first: the row is locked, then the database does not answer."""

    async def give_back(self, items, delay_seconds):
        del delay_seconds
        self.events.append(f"given back {len(items)}")
        if len(self.events) == 1:
            raise DatabaseUnavailable("a lock timeout", reason=Unavailable.LOCKED)
        if len(self.events) == 2:
            raise DatabaseUnavailable("no answer")
        return Written()


class LockedStreamsFence(RecordingFence):
    """The fence of streams. A write with a locked result is rolled back."""

    keeps_slot = True
    locked: frozenset[int] = frozenset()

    async def record(self, items):
        numbers = {item.intent_no for item in items}
        self.events.append(numbers)
        if numbers & self.locked:
            raise DatabaseUnavailable("a lock timeout", reason=Unavailable.LOCKED)
        return Written()


class PassingStreamsFence(LockedStreamsFence):
    """Passes over streams with a locked result, with all that their batches give back."""

    async def record(self, items):
        self.events.append({item.intent_no for item in items})
        streams = {item.trust for item in items if item.intent_no in self.locked}
        return Written(
            [
                Recorded(one.claimed.intent_id, LOCKED, None, None, None, None, is_held=False)
                for one in self.in_flight()
                if one.trust in streams
            ]
        )


@pytest.fixture
def events():
    return []


@pytest.fixture
def slots():
    return Slots("worker-1", SlotPool(1000))


@pytest.fixture
def completer(slots, events):
    def on_error(error):
        events.append(type(error).__name__)

    return Completer(slots, Metrics(), on_error=on_error)


def complete(completer, slots, fence, count, outcome=None):
    """Take items under a fence, and complete them."""
    trust = TrustWindow.counted_from(slots.clock(), 30.0)
    first = len(slots)
    claimed = [claim_of(number) for number in range(first, first + count)]
    items = claimed_items(claimed, fence, trust, 30.0, slots.clock())
    slots.take(items)
    for item in items:
        item.call()
        completer.complete(item, outcome or Accepted(), 0.001)
    return items


async def test_results_are_sent_before_the_calls_that_are_about_to_start(completer, slots, events):
    complete(completer, slots, RecordingFence(events), 1)
    asyncio.get_running_loop().call_soon(events.append, "a call starts")
    await completer.step()
    await asyncio.sleep(0)
    assert events == ["sent 1", "a call starts"]
    assert slots.free == 1000


async def test_refused_result_does_not_take_its_neighbours_along(completer, slots, events):
    fence = RefusingFence(events)
    complete(completer, slots, fence, 2)
    complete(completer, slots, fence, 1, Rejected())
    await completer.step()
    assert events == ["sent 3", "sent 1", "sent 1", "sent 1"]
    assert slots.free == 1000


async def test_results_of_a_lost_lease_are_not_sent_again(completer, slots, events):
    complete(completer, slots, FailingFence(events, LeaseLost("gone", lease_name="leader")), 202)
    await completer.step()
    await completer.step()
    assert events == ["sent 202", "LeaseLost"]
    assert slots.free == 1000


async def test_result_of_an_item_that_is_lost_is_not_sent(completer, slots, events):
    [lost, _] = complete(completer, slots, RecordingFence(events), 2)
    slots.lose([lost])
    await completer.step()
    assert events == ["LeaseLost", "sent 1"], "whoever discards a result gives up its lease"
    assert slots.free == 1000


@pytest.mark.parametrize(
    "error", [LeaseLost("gone", lease_name="one"), DatabaseUnavailable("no answer")]
)
async def test_lease_that_fails_does_not_hold_up_the_results_of_the_others(
    completer, slots, events, error
):
    complete(completer, slots, FailingFence(events, error), 3)
    complete(completer, slots, RecordingFence(events), 2)
    if isinstance(error, LeaseLost):
        await completer.step()
    else:
        with pytest.raises(DatabaseUnavailable):
            await completer.step()
    assert events == ["sent 3", type(error).__name__, "sent 2"]
    assert slots.free == 1000


class AnsweringFence(RecordingFence):
    """A fence whose results become what the test says."""

    def __init__(self, events, *recorded):
        super().__init__(events)
        self._recorded = recorded

    async def record(self, items):
        await super().record(items)
        return Written(self._recorded)


async def test_lookup_without_news_is_not_counted_as_an_attempt(slots, events):
    metrics = Metrics()
    completer = Completer(slots, metrics, on_error=events.append)
    written, unwritten = (
        Recorded(claim_of(number).intent_id, APPLIED, row, SUBMITTED, None, NOW, is_held=False)
        for number, row in ((0, 1), (1, 0))
    )
    still = Submitted(reference="r", ask_after_seconds=1)
    items = complete(completer, slots, AnsweringFence(events, written, unwritten), 2, still)
    items[1].lookup_contract = Contract(
        target="sms",
        scope="item",
        guarantee="lookup",
        gateway=PythonTerms(function="a:b", lookup="a:c"),
    )
    await completer.step()
    labels = {"worker_id": "", "target": "sms", "state": "SUBMITTED"}
    assert metrics.registry.get_sample_value("leasehold_attempts_total", labels) == 1


async def test_giving_back_goes_on_at_once_after_a_repeated_try_without_answer(
    completer, slots, events
):
    trust = TrustWindow.counted_from(slots.clock(), 30.0)
    [item] = claimed_items([claim_of(0)], LockedFence(events), trust, 30.0, slots.clock())
    slots.take([item])
    completer.give_back(item, 0.0)
    await completer.step()
    completer.wake.clear()
    while not events[1:]:
        pause = None
        try:
            pause = await completer.repeater.step()
        except DatabaseUnavailable:
            break
        await asyncio.sleep(pause.seconds)
    assert completer.wake.is_set(), "else the completer sleeps, and the item is held meanwhile"
    await completer.step()
    assert events == ["given back 1"] * 3
    assert not len(slots)


@pytest.mark.parametrize("kind", [LockedStreamsFence, PassingStreamsFence])
async def test_what_a_batch_gives_back_waits_for_the_result_that_is_repeated(
    completer, slots, events, kind
):
    """The stream goes on after that write, so all of its batch must be in it."""
    fence = kind(events)
    fence.in_flight = slots.all
    streams = []
    for first in (0, 10):
        trust = TrustWindow.counted_from(slots.clock(), 30.0)
        claimed = [claim_of(first + place) for place in range(3)]
        streams.append(claimed_items(claimed, fence, trust, 30.0, slots.clock()))
        slots.take(streams[-1])
    locked, free = streams
    fence.locked = frozenset({locked[0].intent_no})
    for items in streams:
        for item in items:
            item.call()
        completer.complete(items[0], Accepted(), 0.001)
        for item in items[1:]:
            completer.put_back(item)
    await completer.step()
    while len(events) < 6:
        pause = await completer.repeater.step()
        await asyncio.sleep(pause.seconds)
    assert events[:1] == [{0, 10}]
    others = events[1:]
    assert ({10} in others) == (kind is LockedStreamsFence), "else it was written at once"
    assert set(slots.all()) == set(locked), "none of its batch is let go before"
    assert not any(item.is_lost for item in locked + free)
    fence.locked = frozenset()
    while slots.all():
        pause = await completer.repeater.step()
        await asyncio.sleep(pause.seconds)
    assert events[-1] == {0}
