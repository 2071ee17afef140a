"""Lookups: items share requests, and none of them suffers for another."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.intent import AttemptState
from leasehold.domain.lease import TrustWindow, trust_clock
from leasehold.domain.outcome import Accepted, Submitted, Unknown
from leasehold.executor.completer import Completer
from leasehold.executor.fences import GIVEN_BACK_MAX, Written
from leasehold.executor.item import ItemState, claimed_items
from leasehold.executor.limits import Gate
from leasehold.executor.runner import Runner
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.targets import Served
from leasehold.gateway.errors import TrustEnded
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import NOW, claim_of

SUBMITTED, IN_DOUBT = AttemptState.SUBMITTED, AttemptState.IN_DOUBT


class RecordingFence:
    """A fence without a database, which notes what becomes of each item."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX
    holder_id = "worker-1"

    def __init__(self):
        self.outcomes, self.given_back = {}, {}

    def must_begin(self, contract):
        del contract
        return True

    async def begin(self, items):
        raise AssertionError(f"lookups of {items} are not begun")

    async def record(self, items):
        self.outcomes |= {item.intent_no: item.outcome for item in items}
        return Written()

    async def give_back(self, items, delay_seconds):
        self.given_back |= dict.fromkeys([item.intent_no for item in items], delay_seconds)
        return Written()


class Ledger:
    """A gateway that notes what it was asked, and answers when it is let go."""

    lookups_max = 3

    def __init__(self, answer=lambda numbers: [Accepted() for _ in numbers], *, is_open=True):
        self.asked, self.cancelled = [], 0
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()
        if is_open:
            self.gate.set()
        self._answer = answer

    async def submit(self, submission):
        raise AssertionError(f"{submission} must not be submitted")

    async def lookup(self, submission):
        raise AssertionError(f"{submission} must not be looked up alone")

    async def lookup_many(self, submissions):
        numbers = [one.intent_id.int for one in submissions]
        self.asked.append(numbers)
        self.arrived.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._answer(numbers)


class SingleGateway:
    def __init__(self):
        self.asked = []

    async def lookup(self, submission):
        self.asked.append(submission.intent_id.int)
        return Accepted()


class Targets:
    def __init__(self, gateway):
        contract = Contract(
            target="sms",
            version=1,
            scope="item",
            guarantee="lookup",
            gateway=PythonTerms(function="a:b", lookup="a:c"),
        )
        self.served = Served(contract=contract, gateway=gateway, lease_seconds=30)
        self._gate = Gate(10, None)

    async def of(self, target, version):
        del target, version
        return self.served

    def gate(self, target):
        del target
        return self._gate


class Setup:
    def __init__(self, gateway, concurrency=10):
        self.pool = SlotPool(concurrency)
        self.slots, self.fence = Slots("w", self.pool), RecordingFence()
        self.metrics = Metrics()
        self.completer = Completer(self.slots, self.metrics, on_error=_fail)
        self.targets = Targets(gateway)
        self.runner = Runner(self.slots, self.targets, self.completer, self.metrics, on_error=_fail)

    def start(self, *numbers, state=SUBMITTED, ages=None):
        """Claim items that are to be asked about, and start them. `ages` is in seconds."""
        claims = [
            claim_of(number)._replace(
                last_state=state,
                reference=f"r{number}",
                first_tried_at=NOW - timedelta(seconds=(ages or {}).get(number, 0)),
            )
            for number in numbers
        ]
        trust = TrustWindow.counted_from(trust_clock(), 30.0)
        items = claimed_items(claims, self.fence, trust, 30.0, trust_clock())
        self.slots.take(items)
        self.runner.start(items)
        return items

    async def until_idle(self):
        async with asyncio.timeout(10):
            while len(self.slots):
                await asyncio.sleep(0.002)
                await self.completer.step()


def _fail(error):
    raise error


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (no event tells it)
            await asyncio.sleep(0)


def count(metrics, name):
    return metrics.registry.get_sample_value(
        f"leasehold_{name}_total", {"worker_id": "", "target": "sms"}
    )


async def test_items_of_one_claim_are_asked_about_in_few_requests_oldest_first():
    ledger = Ledger()
    setup = Setup(ledger)
    setup.start(1, 2, 3, 4, 5, 6, 7, ages={3: 50, 6: 40, 1: 30, 2: 20, 7: 10, 5: 5})
    await setup.until_idle()
    assert ledger.asked == [[3, 6, 1], [2, 7, 5], [4]]
    assert set(setup.fence.outcomes) == {1, 2, 3, 4, 5, 6, 7}
    assert (count(setup.metrics, "lookups"), count(setup.metrics, "lookup_requests")) == (7, 3)
    assert setup.targets.served.calls == 0


class LargeLedger(Ledger):
    lookups_max = 50


async def test_questions_give_their_slots_back_for_more_if_no_slot_is_free():
    ledger = LargeLedger(is_open=False)
    setup = Setup(ledger, concurrency=3)
    setup.start(1, 2, 3)
    await until(lambda: setup.slots.free == 2)
    setup.start(4, 5)
    await until(lambda: setup.slots.free == 2)
    await ledger.arrived.wait()
    assert ledger.asked == [[1, 2, 3, 4, 5]]
    assert setup.slots.free == 2, "one request uses one slot"
    assert setup.pool.stuck_calls == 0
    ledger.gate.set()
    await setup.until_idle()
    assert setup.slots.free == 3
    assert set(setup.fence.outcomes) == {1, 2, 3, 4, 5}


async def test_questions_keep_their_slots_while_others_are_free():
    ledger = LargeLedger(is_open=False)
    setup = Setup(ledger, concurrency=3)
    setup.start(1, 2)
    await ledger.arrived.wait()
    assert setup.slots.free == 1
    ledger.gate.set()
    await setup.until_idle()


async def test_requests_of_a_crowded_moment_use_one_slot_each():
    ledger = Ledger(is_open=False)
    setup = Setup(ledger, concurrency=7)
    setup.start(1, 2, 3, 4, 5, 6, 7)
    await until(lambda: len(ledger.asked) == 3)
    assert setup.slots.free == 4
    ledger.gate.set()
    await setup.until_idle()
    assert setup.slots.free == 7


async def test_request_has_a_slot_when_the_item_that_brought_it_is_lost():
    ledger = LargeLedger(is_open=False)
    setup = Setup(ledger, concurrency=3)
    lost, *_ = setup.start(1, 2, 3)
    await ledger.arrived.wait()
    setup.slots.lose([lost])
    await until(lambda: lost.state is ItemState.DONE)
    assert setup.slots.free == 2
    assert setup.pool.stuck_calls == 0, "the others wait for an answer that comes"
    ledger.gate.set()
    await setup.until_idle()
    await until(lambda: setup.slots.free == 3)


async def test_items_of_two_claims_that_come_together_share_a_request():
    ledger = Ledger()
    setup = Setup(ledger)
    setup.start(1)
    setup.start(2, state=IN_DOUBT)
    await setup.until_idle()
    assert ledger.asked == [[1, 2]]


async def test_gateway_that_takes_one_at_a_time_is_asked_about_each():
    gateway = SingleGateway()
    setup = Setup(gateway)
    setup.start(1, 2)
    await setup.until_idle()
    assert sorted(gateway.asked) == [1, 2]
    assert set(setup.fence.outcomes) == {1, 2}


async def test_each_item_gets_the_answer_to_its_own_question():
    def answer(numbers):
        return [Accepted() if number % 2 else Unknown() for number in numbers]

    setup = Setup(Ledger(answer))
    setup.start(1, 2)
    setup.start(3, 4, state=IN_DOUBT)
    await setup.until_idle()
    assert setup.fence.outcomes[1] == setup.fence.outcomes[3] == Accepted()
    assert isinstance(setup.fence.outcomes[2], Submitted)
    assert set(setup.fence.given_back) == {4}


@pytest.mark.parametrize("fault", ["raises", "answers too few"])
async def test_gateway_that_fails_leaves_every_item_as_it_was(fault):
    def answer(numbers):
        if fault == "raises":
            raise ConnectionError
        return [Accepted()] * (len(numbers) - 1)

    setup = Setup(Ledger(answer))
    setup.start(1, 2)
    setup.start(3, state=IN_DOUBT)
    await setup.until_idle()
    assert {type(one) for one in setup.fence.outcomes.values()} == {Submitted}
    assert set(setup.fence.outcomes) == {1, 2}
    assert set(setup.fence.given_back) == {3}


async def test_item_that_is_lost_does_not_end_the_request_of_the_others():
    ledger = Ledger(is_open=False)
    setup = Setup(ledger)
    lost, _ = setup.start(1, 2)
    await ledger.arrived.wait()
    setup.slots.lose([lost])
    await until(lambda: lost.state is ItemState.DONE)
    assert setup.slots.free == 9
    ledger.gate.set()
    await setup.until_idle()
    assert set(setup.fence.outcomes) == {2}
    assert ledger.cancelled == 0


async def test_request_ends_when_nobody_waits_for_it_any_more():
    ledger = Ledger(is_open=False)
    setup = Setup(ledger)
    items = setup.start(1, 2)
    await ledger.arrived.wait()
    setup.slots.lose(items)
    await setup.until_idle()
    assert (ledger.cancelled, setup.slots.free, setup.fence.outcomes) == (1, 10, {})


async def test_item_that_is_lost_before_its_request_is_sent_is_left_out():
    ledger = Ledger()
    setup = Setup(ledger)
    lost, _ = setup.start(1, 2)
    await until(lambda: lost.task)
    setup.slots.lose([lost])
    await setup.until_idle()
    assert ledger.asked == [[2]]


async def test_aborted_lookup_is_repeated_later_and_nothing_is_in_doubt():
    ledger = Ledger(is_open=False)
    setup = Setup(ledger)
    items = [*setup.start(1), *setup.start(2, state=IN_DOUBT), *setup.start(3)]
    await ledger.arrived.wait()
    for item in items[:2]:
        setup.runner.abort(item)
    ledger.gate.set()
    await setup.until_idle()
    assert setup.fence.outcomes[1] == Submitted(reference="r1", ask_after_seconds=5)
    assert setup.fence.given_back == {2: setup.targets.served.contract.quarantine_seconds}
    assert setup.fence.outcomes[3] == Accepted()


async def test_request_that_ignores_its_end_keeps_one_slot_until_it_ends():
    class Clinging(Ledger):
        async def lookup_many(self, submissions):
            while not self.gate.is_set():
                try:
                    return await super().lookup_many(submissions)
                except asyncio.CancelledError:
                    continue
            return []

    ledger = Clinging(is_open=False)
    setup = Setup(ledger)
    items = setup.start(1, 2, 3)
    await ledger.arrived.wait()
    for item in items:
        setup.runner.abort(item)
    await setup.until_idle()
    await asyncio.sleep(0)
    assert (setup.slots.free, setup.pool.stuck_calls) == (9, 1)
    ledger.gate.set()
    await until(lambda: setup.slots.free == 10)


async def test_request_that_was_not_sent_for_want_of_trust_records_nothing():
    class Untrusted(Ledger):
        async def lookup_many(self, submissions):
            for item in items:
                item.lose()
            assert not any(one.may_send() for one in submissions)
            raise TrustEnded("not sent")

    setup = Setup(Untrusted())
    items = setup.start(1, 2)
    await setup.until_idle()
    assert (setup.fence.outcomes, setup.fence.given_back) == ({}, {})
