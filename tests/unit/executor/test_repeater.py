"""The repeater: writes that were rolled back, and items whose rows somebody else has locked."""

from __future__ import annotations

import pytest

from leasehold.domain.errors import DatabaseUnavailable, Unavailable
from leasehold.domain.lease import TrustWindow
from leasehold.executor.item import claimed_items
from leasehold.executor.repeater import SECONDS_MAX, Repeater
from tests.support.claimed_item import claim_of

LOCKED = DatabaseUnavailable("a lock timeout", reason=Unavailable.LOCKED)


class Fence:
    holder_id = "worker-1"

    def __init__(self, *, keeps_slot):
        self.keeps_slot = keeps_slot


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Table:
    """Rolls a write back while one of its rows is locked."""

    def __init__(self, *locked):
        self.locked = set(locked)
        self.tried, self.written = [], []

    async def write(self, items):
        numbers = [item.intent_no for item in items]
        self.tried.append(numbers)
        if self.locked & set(numbers):
            raise LOCKED
        self.written += numbers


class PassingTable(Table):
    """Passes over items while their rows are locked."""

    async def write(self, items):
        numbers = [item.intent_no for item in items]
        self.tried.append(numbers)
        self.written += sorted(set(numbers) - self.locked)
        return [item for item in items if item.intent_no in self.locked]


def items_of(*trusts, keeps_slot=False):
    """Make one item for each trust, numbered from 0."""
    fence = Fence(keeps_slot=keeps_slot)
    return [
        claimed_items([claim_of(number)], fence, trust, 30.0, 0.0)[0]
        for number, trust in enumerate(trusts)
    ]


@pytest.fixture
def clock():
    return Clock()


async def steps(repeater, clock, count):
    for _ in range(count):
        clock.now += (await repeater.step()).seconds


async def test_one_locked_row_holds_up_no_other(clock):
    trust = TrustWindow(2000.0)
    table, repeater = Table(5), Repeater(clock)
    items = items_of(*[trust] * 16)
    numbers = [item.intent_no for item in items]
    table.locked = {numbers[5]}
    repeater.add(table.write, items, LOCKED)
    await steps(repeater, clock, 12)
    assert sorted(table.written) == sorted(set(numbers) - table.locked)
    assert max(map(len, table.tried)) == 8
    assert clock.now < 1001.0, "the others wait for nothing"
    table.locked = set()
    await steps(repeater, clock, 12)
    assert sorted(table.written) == sorted(numbers)


async def test_items_that_were_passed_over_are_written_together_when_they_are_free(clock):
    items = items_of(*[TrustWindow(2000.0)] * 6)
    numbers = [item.intent_no for item in items]
    table, repeater = PassingTable(*numbers), Repeater(clock)
    repeater.add_locked(table.write, items)
    await steps(repeater, clock, 4)
    assert table.tried == [numbers] * 2
    table.locked = set(numbers[:2])
    await steps(repeater, clock, 2)
    assert table.written == numbers[2:]
    table.locked = set()
    await steps(repeater, clock, 2)
    assert (table.tried[-1], sorted(table.written)) == (numbers[:2], sorted(numbers))


async def test_rows_that_stay_locked_are_tried_ever_more_rarely(clock):
    [item] = items_of(TrustWindow(2000.0))
    table, repeater = PassingTable(item.intent_no), Repeater(clock)
    repeater.add_locked(table.write, [item])
    assert (await repeater.step()).seconds > 0, "not at once"
    await steps(repeater, clock, 200)
    assert len(table.tried) >= 20
    assert clock.now - 1000.0 > len(table.tried) * SECONDS_MAX / 3


async def test_locked_row_is_tried_ever_more_rarely(clock):
    [item] = items_of(TrustWindow(2000.0))
    table, repeater = Table(item.intent_no), Repeater(clock)
    repeater.add(table.write, [item], LOCKED)
    await steps(repeater, clock, 200)
    assert len(table.tried) >= 20
    assert clock.now - 1000.0 > len(table.tried) * SECONDS_MAX / 3


async def test_results_of_one_stream_stay_together(clock):
    first, second = TrustWindow(2000.0), TrustWindow(2000.0)
    items = items_of(first, first, first, second, second, keeps_slot=True)
    numbers = [item.intent_no for item in items]
    table, repeater = Table(numbers[4]), Repeater(clock)
    repeater.add(table.write, items, LOCKED)
    await steps(repeater, clock, 4)
    assert table.tried[:2] == [numbers[:3], numbers[3:]]
    assert numbers[3:] in table.tried[2:]


async def test_write_that_fails_in_another_way_is_not_repeated(clock):
    [item] = items_of(TrustWindow(2000.0))
    repeater = Repeater(clock)

    async def fail(_items):
        raise DatabaseUnavailable("no answer")

    repeater.add(fail, [item], LOCKED)
    clock.now += 1
    with pytest.raises(DatabaseUnavailable, match="no answer"):
        await repeater.step()
    assert (await repeater.step()).seconds > 10
