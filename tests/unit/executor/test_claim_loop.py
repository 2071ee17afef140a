"""The claim loop beside contracts that change while it waits for the database."""

from __future__ import annotations

from types import SimpleNamespace

from leasehold.domain.timing import Timings
from leasehold.executor.claim_loop import ClaimLoop, Claims
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.limits import Gate
from leasehold.executor.slots import SlotPool, Slots
from leasehold.observe.metrics import Metrics
from tests.support.claimed_item import NOW


async def test_target_that_moves_to_another_scope_during_a_step_does_not_fail_the_step():
    gate, metrics = Gate(5, None), Metrics()
    targets = SimpleNamespace(current={"sms": 30.0, "mail": 60.0}, gate=lambda _: gate)
    slots, claimed = Slots("w", SlotPool(10)), []

    class Store:
        async def read_open_transactions(self, former):
            del former, targets.current["sms"]
            return SimpleNamespace(seen_at=NOW, since=None)

    class Claimer:
        async def claim(self, batch_size, lease_seconds, rooms, due_from):
            del batch_size, due_from
            claimed.append((lease_seconds, *rooms))
            return Claims([], {})

    loop = ClaimLoop(
        "executor",
        Store(),
        Claimer(),
        slots,
        targets,
        SimpleNamespace(times=CallTimes(metrics)),
        metrics,
        Timings,
        lease_seconds=lambda target: targets.current[target],
        on_error=lambda _: None,
    )
    loop._marks.full_walk_ended((), slots.clock() - 1.0)  # so the step begins with a look
    await loop.step()
    assert list(targets.current) == ["mail"]
    assert sorted(claimed) == [(30.0, "sms"), (60.0, "mail")]
