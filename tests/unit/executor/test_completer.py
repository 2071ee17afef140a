"""Results on their way to the database."""

from __future__ import annotations

import asyncio

from leasehold.coordination.claims import Claims
from leasehold.domain.errors import InvalidCompletionState, LeaseLost
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted, Rejected
from leasehold.executor.completer import Completer, Finished
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import claim_of


class Listener:
    """A fence that says when it was asked."""

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
    completion = Completer(Listener(heard), claims, Metrics(), trouble=troubles.append)
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


class Refusing(Listener):
    """A fence that refuses what was not accepted, when that comes with others."""

    async def record(self, results):
        await super().record(results)
        others = [one for one in results if not isinstance(one.outcome, Accepted)]
        if others and len(results) > 1:
            raise InvalidCompletionState("one of them")
        return []


async def test_refused_result_does_not_take_its_neighbours_along():
    heard, claims = [], Claims("worker-1", 1000)
    completion = Completer(Refusing(heard), claims, Metrics(), trouble=heard.append)
    for one in [*finished(claims, 2), *finished(claims, 1, Rejected())]:
        completion.complete(one)
    await completion.step()
    assert heard == ["sent 3", "sent 1", "sent 1", "sent 1"]
    assert claims.free_slots == 1000


class Losing(Listener):
    """A fence whose lease is lost with the first writing."""

    async def record(self, results):
        await super().record(results)
        raise LeaseLost("gone", lease_name="leader")


async def test_results_of_a_lost_lease_are_not_sent_again():
    heard, claims = [], Claims("worker-1", 1000)

    def trouble(error):
        heard.append(type(error).__name__)
        claims.lose(claims.all())

    completion = Completer(Losing(heard), claims, Metrics(), trouble=trouble)
    for one in [*finished(claims, 200), *finished(claims, 2, Rejected())]:
        completion.complete(one)
    await completion.step()
    await completion.step()
    assert heard == ["sent 202", "LeaseLost"]
    assert claims.free_slots == 1000
