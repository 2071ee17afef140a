"""The claim loop: which statements it makes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from leasehold.domain.timing import Timings
from leasehold.executor.claim_loop import ClaimLoop, Claims
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.limits import Gate
from leasehold.executor.low_water import FULL_WALK_SHARE
from leasehold.executor.slots import SlotPool, Slots
from leasehold.observe.metrics import Metrics
from leasehold.store.postgres.open_transactions import seen_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Targets:
    def __init__(self):
        self.current = {"sms": None, "mail": None}
        self._gate = Gate(10, None)

    def gate(self, target):
        del target
        return self._gate


class Runner:
    times = CallTimes(Metrics())


class EmptyQueue:
    """Nothing is due. It notes the statements; a claim takes a while."""

    def __init__(self, clock):
        self.clock = clock
        self.claim_seconds = 0.0
        self.statements = []

    async def read_open_transactions(self, former):
        self.statements.append("look")
        return seen_after(former, NOW, [])

    async def claim(self, batch_size, lease_seconds, rooms, due_from):
        del batch_size, lease_seconds, rooms
        self.statements.append("full walk" if due_from is None else "claim")
        self.clock.now += self.claim_seconds
        return Claims([], {})


def raise_it(error):
    raise error


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return EmptyQueue(clock)


@pytest.fixture
def loop(clock, queue):
    return ClaimLoop(
        "executor",
        queue,
        queue,
        Slots("worker-1", SlotPool(10, clock)),
        Targets(),
        Runner(),
        Metrics(),
        Timings,
        lease_seconds=lambda _: 30.0,
        on_error=raise_it,
    )


async def polls(loop, clock, count):
    for _ in range(count):
        clock.now += (await loop.step()).seconds


async def test_idle_worker_makes_one_statement_for_each_poll(loop, clock, queue):
    await polls(loop, clock, 20)
    assert queue.statements == ["full walk"] * 20
    assert clock.now - 100.0 > 15, "it polls about once a second"


async def test_hint_to_an_idle_worker_is_followed_by_one_statement(loop, clock, queue):
    await polls(loop, clock, 5)
    queue.statements.clear()
    clock.now -= 0.5  # between two polls
    loop.work_is_due("sms")
    await loop.step()
    assert queue.statements == ["full walk"]


async def test_worker_looks_at_open_transactions_while_full_walks_are_slow(loop, clock, queue):
    queue.claim_seconds = 3 * FULL_WALK_SHARE
    await polls(loop, clock, 3)
    assert queue.statements[:3] == ["full walk", "look", "claim"]
