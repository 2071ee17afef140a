"""Results on their way to the database."""

from __future__ import annotations

import asyncio

from leasehold.coordination.claims import Claims
from leasehold.domain.errors import InvalidCompletionState, LeaseLost
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted, Rejected
from leasehold.executor.completer import LINGER_SECONDS, Completion, Finished
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import claim_of


class Listener:
    """A fence that says when it was asked."""

    prefers_accepted = True

    def __init__(self, heard):
        self.heard = heard

    def is_of_one_result(self, refusal):
        return isinstance(refusal, InvalidCompletionState)

    async def record(self, results):
        self.heard.append(f"sent {len(results)}")
        return []


async def test_results_are_not_held_up_by_calls_that_are_about_to_begin():
    heard, troubles = [], []
    claims = Claims("worker-1", 10)
    trust = TrustWindow.counted_from(claims.clock(), 30.0)
    [held] = claims.take([claim_of(7)], trust, 30.0, claims.clock())
    completion = Completion(Listener(heard), claims, Metrics(), trouble=troubles.append)
    completion.complete(Finished(held, Accepted(), 0.001))
    asyncio.get_running_loop().call_soon(heard.append, "a call begins")
    await completion.step()
    await asyncio.sleep(0)
    assert (heard, troubles) == (["sent 1", "a call begins"], [])
    assert claims.free_slots == 10


def finished(claims, count, outcome=None):
    trust = TrustWindow.counted_from(claims.clock(), 30.0)
    first = len(claims)
    numbers = [claim_of(number) for number in range(first, first + count)]
    held = claims.take(numbers, trust, 30.0, claims.clock())
    return [Finished(one, outcome or Accepted(), 0.001) for one in held]


class Slow(Listener):
    """A fence that answers when it is told to."""

    def __init__(self, heard):
        super().__init__(heard)
        self.may_answer = asyncio.Event()

    async def record(self, results):
        await super().record(results)
        await self.may_answer.wait()
        return []


async def test_second_writer_takes_part_only_when_there_is_a_batch_for_it():
    """As long as there is not, results gather: each writing costs as much as dozens of them."""
    heard, claims = [], Claims("worker-1", 30)
    fence = Slow(heard)
    completion = Completion(fence, claims, Metrics(), trouble=heard.append)
    for one in finished(claims, 10):
        completion.complete(one)
    writers = [asyncio.create_task(completion.step())]
    await asyncio.sleep(0.02)
    for one in finished(claims, 9):
        completion.complete(one)
    assert (await completion.step()).seconds > 1
    assert heard == ["sent 10"]
    for one in finished(claims, 1):
        completion.complete(one)
    await asyncio.sleep(2 * LINGER_SECONDS)
    writers.append(asyncio.create_task(completion.step()))
    await asyncio.sleep(0.02)
    assert heard == ["sent 10", "sent 10"]
    fence.may_answer.set()
    await asyncio.gather(*writers)
    assert claims.free_slots == 30


class Refusing(Listener):
    """A fence that refuses what was not accepted, when that comes with others."""

    async def record(self, results):
        await super().record(results)
        others = [one for one in results if not isinstance(one.outcome, Accepted)]
        if others and len(results) > 1:
            raise InvalidCompletionState("one of them")
        return []


async def test_much_that_was_accepted_is_written_by_itself_and_not_again_for_a_neighbour():
    heard, claims = [], Claims("worker-1", 1000)
    completion = Completion(Refusing(heard), claims, Metrics(), trouble=heard.append)
    results = [*finished(claims, 200), *finished(claims, 2, Rejected()), *finished(claims, 1)]
    for one in results:
        completion.complete(one)
    await completion.step()
    assert heard == ["sent 201", "sent 2", "sent 1", "sent 1"]
    assert claims.free_slots == 1000


async def test_little_that_was_accepted_is_written_with_the_rest():
    heard, claims = [], Claims("worker-1", 1000)
    completion = Completion(Listener(heard), claims, Metrics(), trouble=heard.append)
    for one in [*finished(claims, 20), *finished(claims, 2, Rejected())]:
        completion.complete(one)
    await completion.step()
    assert heard == ["sent 22"]


class Losing(Listener):
    """A fence whose lease is lost with the first writing."""

    async def record(self, results):
        await super().record(results)
        raise LeaseLost("gone", lease_name="leader")


async def test_nothing_more_is_sent_when_trust_ended_with_the_first_part():
    heard, claims = [], Claims("worker-1", 1000)

    def trouble(error):
        heard.append(type(error).__name__)
        claims.lose(claims.all())

    completion = Completion(Losing(heard), claims, Metrics(), trouble=trouble)
    for one in [*finished(claims, 200), *finished(claims, 2, Rejected())]:
        completion.complete(one)
    await completion.step()
    assert heard == ["sent 200", "LeaseLost"]
    assert claims.free_slots == 1000


async def test_what_was_accepted_stays_with_the_rest_where_that_costs_the_same():
    heard, claims = [], Claims("worker-1", 1000)
    fence = Listener(heard)
    fence.prefers_accepted = False
    completion = Completion(fence, claims, Metrics(), trouble=heard.append)
    for one in [*finished(claims, 200), *finished(claims, 2, Rejected())]:
        completion.complete(one)
    await completion.step()
    assert heard == ["sent 202"]
