"""Work that was taken and not begun."""

from __future__ import annotations

from leasehold.coordination.claims import Claims
from leasehold.domain.lease import TrustWindow
from leasehold.executor.completer import Completer
from leasehold.executor.runner import Runner
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import claim_of


class Returned:
    """A fence that takes everything back."""

    async def give_back(self, batch, delay_seconds):
        del batch, delay_seconds
        return 0


async def test_what_was_taken_right_before_the_end_is_given_back_though_its_task_never_ran():
    """A leader that stepped down waited for it until its lease was over."""
    claims, metrics, troubles = Claims("worker-1", 10), Metrics(), []
    trust = TrustWindow.counted_from(claims.clock(), 30.0)
    taken = claims.take([claim_of(7), claim_of(8)], trust, 30.0, claims.clock())
    completion = Completer(Returned(), claims, metrics, trouble=troubles.append)
    attempts = Runner(Returned(), claims, None, completion, metrics, trouble=troubles.append)
    attempts.start(taken)
    attempts.close()
    await completion.step()
    assert (claims.free_slots, troubles) == (10, [])
