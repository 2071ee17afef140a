"""The runner: what it gives back, and what it never does twice."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from itertools import chain

import pytest

from leasehold.coordination.term import Term
from leasehold.domain.contract import Contract
from leasehold.domain.lease import Lease, TrustWindow, trust_clock
from leasehold.domain.outcome import Accepted
from leasehold.domain.verdict import BeginVerdict
from leasehold.executor.completer import Completer
from leasehold.executor.fences import GIVEN_BACK_MAX, Written
from leasehold.executor.item import ItemState, Transitions, claimed_items
from leasehold.executor.limits import Gate
from leasehold.executor.runner import Runner
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.targets import Served
from leasehold.gateway.errors import TrustEnded
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import NOW, claim_of

FOREVER = TrustWindow(math.inf)


class RecordingFence:
    """A fence without a database, which notes what it is asked for."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX

    def __init__(self, holder_id="worker-1", *, must_begin=False):
        self.holder_id = holder_id
        self.begun, self.recorded = [], []
        self._must_begin = must_begin

    def must_begin(self, contract):
        del contract
        return self._must_begin

    def token(self, claimed):
        return claimed.attempt_no

    async def begin(self, items):
        self.begun.append([item.intent_no for item in items])
        return {item.claimed.intent_id: BeginVerdict.BEGUN for item in items}

    async def record(self, items):
        self.recorded.append([item.intent_no for item in items])
        return Written()

    async def give_back(self, items, delay_seconds):
        del items, delay_seconds
        return Written()


class Gateway:
    def __init__(self, submit):
        self.submit = submit


class Targets:
    def __init__(self, gateway):
        contract = Contract(
            target="sms",
            version=1,
            scope="item",
            guarantee="keyed",
            gateway=PythonTerms(function="a:b"),
        )
        self._served = Served(contract=contract, gateway=gateway, lease_seconds=30)
        self._gate = Gate(10, None)

    async def of(self, target, version):
        del target, version
        return self._served

    def gate(self, target):
        del target
        return self._gate

    def observe(self, item, outcome, metrics):
        pass


async def accept(submission):
    del submission
    return Accepted()


class Setup:
    def __init__(self, submit=accept, gateway=None):
        self.slots, self.metrics, self.troubles = Slots("worker-1", SlotPool(10)), Metrics(), []
        self.completer = Completer(self.slots, self.metrics, on_error=self.troubles.append)
        self.runner = Runner(
            self.slots,
            Targets(gateway or Gateway(submit)),
            self.completer,
            self.metrics,
            on_error=self.troubles.append,
        )

    def take(self, fence, *numbers):
        trust = TrustWindow.counted_from(trust_clock(), 30.0)
        items = claimed_items(map(claim_of, numbers), fence, trust, 30.0, trust_clock())
        self.slots.take(items)
        return items

    async def until_idle(self):
        async with asyncio.timeout(10):
            while len(self.slots):
                await asyncio.sleep(0.002)
                await self.completer.step()


@pytest.fixture
def setup():
    return Setup()


async def test_items_taken_right_before_the_end_are_given_back_though_their_task_never_ran(setup):
    """A leader that stepped down waited for them until its lease was over."""
    setup.runner.start(setup.take(RecordingFence(), 7, 8))
    setup.runner.close()
    await setup.completer.step()
    assert (setup.slots.free, setup.troubles) == (10, [])


async def test_items_of_several_leases_are_begun_and_recorded_each_under_its_own(setup):
    fences = [RecordingFence("a", must_begin=True), RecordingFence("b", must_begin=True)]
    items = [*setup.take(fences[0], 1, 2), *setup.take(fences[1], 3), *setup.take(fences[0], 4)]
    setup.runner.start(items)
    await setup.until_idle()
    assert [fence.begun for fence in fences] == [[[1, 2, 4]], [[3]]]
    assert [sorted(chain.from_iterable(fence.recorded)) for fence in fences] == [[1, 2, 4], [3]]
    assert setup.troubles == []


async def test_item_whose_lease_is_lost_is_not_called_and_its_neighbours_are():
    called = []

    async def submit(submission):
        called.append(submission.intent_id.int)
        return Accepted()

    setup, fence = Setup(submit), RecordingFence()
    items = setup.take(fence, 1, 2, 3)
    setup.slots.lose([items[1]])
    setup.runner.start(items)
    await setup.until_idle()
    assert sorted(called) == [1, 3]
    assert sorted(chain.from_iterable(fence.recorded)) == [1, 3]


async def test_item_that_is_lost_before_its_call_has_started_frees_its_slot():
    class LosingFence(RecordingFence):
        async def begin(self, items):
            asyncio.get_running_loop().call_soon(setup.slots.lose, items)
            return await super().begin(items)

    called = []

    async def submit(submission):
        called.append(submission)
        return Accepted()

    setup, fence = Setup(submit), LosingFence(must_begin=True)
    setup.runner.start(setup.take(fence, 7))
    await setup.until_idle()
    assert (called, fence.recorded) == ([], [])


async def test_call_that_the_gateway_did_not_send_is_neither_recorded_nor_repeated():
    called = []

    async def submit(submission):
        called.append(submission.intent_id.int)
        item.lose()
        assert not submission.may_send()
        raise TrustEnded("not sent")

    setup, fence = Setup(submit), RecordingFence()
    [item] = setup.take(fence, 7)
    setup.runner.start([item])
    await setup.until_idle()
    assert (called, fence.recorded, setup.troubles) == ([7], [], [])


async def test_call_that_was_not_sent_for_a_late_renewal_is_made_when_it_is_answered():
    may_send = []

    async def submit(submission):
        if not may_send:
            term.extend(0.0, NOW, trust=FOREVER, start=TrustWindow(0.0))
            may_send.append(submission.may_send())
            asyncio.get_running_loop().call_later(0.05, term.extend, 0.0, NOW, FOREVER, FOREVER)
            raise TrustEnded("not sent")
        may_send.append(submission.may_send())
        return Accepted()

    setup, fence = Setup(submit), RecordingFence()
    [item] = setup.take(fence, 7)
    lease = Lease(name="a", holder_id="h", epoch=1, expires_at=NOW, grace_expires_at=NOW)
    item.trust = term = Term(lease, FOREVER)
    setup.runner.start([item])
    await setup.until_idle()
    assert (may_send, fence.recorded) == ([False, True], [[7]])


async def test_gateway_that_raises_after_its_call_was_aborted_records_nothing_more():
    calling = asyncio.Event()

    async def submit(submission):
        del submission
        calling.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("cancelled") from None

    setup, fence = Setup(submit), RecordingFence()
    [item] = setup.take(fence, 7)
    setup.runner.start([item])
    async with asyncio.timeout(10):
        await calling.wait()
    setup.runner.abort(item)
    await setup.until_idle()
    await asyncio.sleep(0.01)
    await setup.completer.step()
    assert (item.state, fence.recorded) == (ItemState.DONE, [[7]])


async def test_batch_that_was_aborted_is_not_given_back_when_its_gateway_answers_after_all(
    monkeypatch,
):
    """Else what was aborted would lose its lease, and its result would not be written."""
    calling = asyncio.Event()

    monkeypatch.setattr(Transitions, "are_strict", False)  # the runner would log the error

    class Batches:
        asks_before_sending, submissions_max = False, 2

        async def submit_many(self, submissions):
            calling.set()
            with suppress(asyncio.CancelledError):  # a library that ignores it
                await asyncio.Event().wait()
            del submissions
            return [Accepted()]

    setup, fence = Setup(gateway=Batches()), RecordingFence()
    first, second = setup.take(fence, 7, 8)
    first.followers = [second]
    setup.runner.start([first])
    async with asyncio.timeout(10):
        await calling.wait()
    setup.runner.abort(first)
    await asyncio.wait([first.task], timeout=10)
    assert not second.is_lost
    await setup.until_idle()
    assert (fence.recorded, setup.troubles) == ([[7, 8]], [])
