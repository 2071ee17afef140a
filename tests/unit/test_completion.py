"""Results on their way to the database."""

from __future__ import annotations

import asyncio

from leasehold.coordination.claims import Claims
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted
from leasehold.executor.completion import Completion, Finished
from leasehold.observe.metrics import Metrics
from tests.support.claimed import claim_of


class Listener:
    """A fence that says when it was asked."""

    def __init__(self, heard):
        self.heard = heard

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
