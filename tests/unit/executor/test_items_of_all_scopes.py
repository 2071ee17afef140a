"""The model of a leader's items, beside a worker's items and a holder's streams in the same slots.

All three have the same target and share its gate. What must hold besides what holds for a leader:
there are never more calls than slots, nor more than the target permits; each call has a slot, and
the pool counts what the items say; the heads of a stream are called one after the other, in their
order, and each takes the slot of the last one; whatever is pending in any scope is called.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from leasehold.domain.lease import Lease, StreamLease, StreamState
from leasehold.domain.outcome import Accepted, Retryable
from leasehold.domain.timing import Timings
from leasehold.executor.claim_loop import ClaimLoop, ItemClaimer
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.completer import Completer
from leasehold.executor.item import ItemState, Slot
from leasehold.executor.slots import Slots
from leasehold.executor.streams.held import HeldStreams
from leasehold.executor.streams.holder import StreamHolder
from leasehold.observe.metrics import Metrics
from leasehold.store.postgres.open_transactions import seen_after
from leasehold.store.rows import RecordedStreams, StreamWork
from tests.support.claimed_item import claim_of
from tests.unit.executor.leader.test_leader_items import (
    EPOCH,
    FIXED,
    RANDOM,
    SLOTS,
    LeaderItems,
)

LEASE_SECONDS = 1e9
WAITING_MAX = 15


class Scope:
    """The tables of one scope of workers. Statements are answered when the test says so."""

    def __init__(self, database, first_number):
        self.database = database
        self.numbers = iter(range(first_number, first_number + 1000))

    async def read_open_transactions(self, former):
        return seen_after(former, EPOCH, [])

    async def answer(self, kind, answer):
        return await self.database._answer(kind, answer)


class ItemTables(Scope):
    """Pending items, and the token of the claim that each of some is under."""

    def __init__(self, database):
        super().__init__(database, 1000)
        self.tokens = {}
        self.claims = 0

    @property
    def waiting(self):
        return len(self.tokens)

    def enqueue(self, count):
        self.tokens |= dict.fromkeys((next(self.numbers) for _ in range(count)), 0)

    async def claim_outbox_batch(self, size, worker_id, seconds, targets, rooms, due_from):
        del worker_id, seconds, targets, due_from
        free = [number for number, token in self.tokens.items() if not token]
        self.claims += 1
        claimed = [claim_of(number, self.claims) for number in free[: min(size, *rooms)]]
        self.tokens |= {one.intent_id.int: self.claims for one in claimed}
        return await self.answer("claim item", claimed)

    async def complete_outbox_attempts(self, worker_id, results, *, tell_dispatched):
        del worker_id, tell_dispatched
        for result in results:
            number = result.intent_id.int
            assert self.tokens[number] == result.lease_token.int, "recorded under a lost claim"
            if isinstance(result.outcome, Accepted):
                del self.tokens[number]
            else:
                self.tokens[number] = 0
        return await self.answer("record item", [])

    async def release_outbox_claims(self, worker_id, claims, delay_seconds, unsent):
        del worker_id, delay_seconds, unsent
        for claim in claims:
            assert self.tokens[claim.intent_id.int] == claim.lease_token.int
            self.tokens[claim.intent_id.int] = 0
        return await self.answer("record item", [])


class StreamTables(Scope):
    """Streams with their pending items, the leases that are held, and the heads that are begun."""

    def __init__(self, database):
        super().__init__(database, 3000)
        self.pending = {name: [] for name in "abcdefgh"}
        self.epochs = Counter()
        self.held = set()
        self.begun = {}

    @property
    def waiting(self):
        return sum(map(len, self.pending.values()))

    def enqueue(self, count):
        for number, _ in zip(self.numbers, range(count), strict=False):
            self.pending["abcdefgh"[number % 8]].append(number)

    def work(self, name, *, is_held):
        if is_held:
            self.held.add(name)
            self.begun[name] = self.pending[name][0]
        else:
            self.held.discard(name)
        lease = Lease(
            name=name,
            holder_id="a",
            epoch=self.epochs[name],
            expires_at=EPOCH,
            grace_expires_at=EPOCH,
        )
        return StreamWork(
            lease=StreamLease(target="sms", stream=name, lease=lease),
            state=StreamState.READY if self.pending[name] else StreamState.DRAINED,
            wait_seconds=None,
            is_held=is_held,
            is_begun=is_held,
            heads=[claim_of(self.begun[name])] if is_held else [],
            is_taken_over=False,
        )

    async def claim_streams(
        self, size, holder_id, lease_seconds, grace_seconds, targets, rooms, due_from, *, begin
    ):
        del holder_id, lease_seconds, grace_seconds, targets, due_from, begin
        free = [name for name, numbers in self.pending.items() if numbers]
        free = [name for name in free if name not in self.held][: min(size, *rooms)]
        self.epochs.update(free)
        return await self.answer("claim stream", [self.work(one, is_held=True) for one in free])

    async def record_stream_attempts(
        self, holder_id, leases, results, *, deferred, kept, begin, tell_dispatched
    ):
        del holder_id, begin, tell_dispatched
        names = {self.pending[lease.name][0]: lease.name for lease in leases}
        for result in [*results, *deferred]:
            name = names[result.intent_id.int]
            assert self.begun.pop(name) == result.intent_id.int, "it was not begun"
            if isinstance(getattr(result, "outcome", None), Accepted):
                self.pending[name].pop(0)
        for lease in leases:
            assert lease.name in self.held
            assert lease.epoch == self.epochs[lease.name], "recorded under a lost lease"
        continued = {lease.name for lease in kept}
        work = [
            self.work(
                lease.name, is_held=lease.name in continued and bool(self.pending[lease.name])
            )
            for lease in leases
        ]
        return await self.answer("record stream", RecordedStreams([], work))

    async def release_streams(self, holder_id, leases, unsent):
        del holder_id
        for lease in leases:
            self.held.remove(lease.name)
            assert self.begun.pop(lease.name) in {one.int for one in unsent}
        return await self.answer("record stream", [])


class Worker:
    """The claim loop and the completer of one scope. It also is the runner: the test calls."""

    times = CallTimes(Metrics())

    def __init__(self, tables, slots, targets):
        def on_error(error):
            raise error

        self.tables, self.slots = tables, slots
        self.started = []
        metrics = Metrics()
        self.completer = Completer(slots, metrics, on_error=on_error)
        if isinstance(tables, ItemTables):
            self.kind, claimer = "item", ItemClaimer(tables, slots)
        else:
            self.kind, streams = "stream", HeldStreams("a")
            claimer = StreamHolder(tables, slots, streams, targets, self, metrics, Timings)
        self.loop = ClaimLoop(
            self.kind,
            tables,
            claimer,
            slots,
            targets,
            self,
            metrics,
            Timings,
            lease_seconds=lambda _: LEASE_SECONDS,
            on_error=on_error,
        )

    def start(self, items):
        self.started += items

    def of_state(self, state):
        return [item for item in self.started if item.state is state]

    def call(self, count):
        for item in self.of_state(ItemState.MARKED)[:count]:
            if self.kind == "stream":
                [name] = [
                    one for one, begun in self.tables.begun.items() if begun == item.intent_no
                ]
                assert self.tables.pending[name][0] == item.intent_no, "called out of order"
            item.call()

    def finish(self, count, outcome):
        for item in self.of_state(ItemState.CALLING)[:count]:
            self.completer.complete(item, outcome, 0.001)


class ItemsOfAllScopes(LeaderItems):
    def __init__(self):
        super().__init__()
        tables = ItemTables(self.database), StreamTables(self.database)
        self.workers = [
            Worker(one, self.slots_class("a", self.pool), self.targets) for one in tables
        ]

    @rule(which=st.integers(0, 1), count=st.integers(1, 6))
    def enqueue_for_a_worker(self, which, count):
        tables = self.workers[which].tables
        if tables.waiting < WAITING_MAX:
            tables.enqueue(count)

    @rule(which=st.integers(0, 1), is_answered=st.booleans())
    def claim(self, which, is_answered):
        worker = self.workers[which]
        if f"claim {worker.kind}" not in self.tasks:
            self.begin(f"claim {worker.kind}", worker.loop.step(), is_answered)

    @rule(which=st.integers(0, 1), is_answered=st.booleans())
    def record_of_a_worker(self, which, is_answered):
        worker = self.workers[which]
        worker.completer._first_at = 0.0
        if f"record {worker.kind}" not in self.tasks:
            self.begin(f"record {worker.kind}", worker.completer.step(), is_answered)

    @rule(which=st.integers(0, 1), count=st.integers(1, SLOTS))
    def call_of_a_worker(self, which, count):
        self.workers[which].call(count)

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, SLOTS),
        outcome=st.sampled_from([Accepted(), Accepted(), Retryable(retry_after_seconds=3)]),
    )
    def finish_of_a_worker(self, which, count, outcome):
        self.workers[which].finish(count, outcome)

    @rule(which=st.integers(0, 1), delay=st.sampled_from([0.0, 5.0]))
    def give_back_of_a_worker(self, which, delay):
        worker = self.workers[which]
        for item in worker.of_state(ItemState.MARKED)[:1]:
            item.is_begun = worker.kind == "stream"
            worker.completer.give_back(item, delay)

    def all_slots(self):
        return [self.leader.slots, *(worker.slots for worker in self.workers)]

    @invariant()
    def pool_counts_what_the_items_say(self):
        items = [item for slots in self.all_slots() for item in slots.all()]
        own = [item for item in items if item.slot is Slot.OWN]
        assert self.pool.in_flight["sms"] == len(own)
        assert self.pool._results == sum(item.slot is Slot.RETURNED for item in items)
        if not any(kind.startswith(("claim", "mark")) for kind in self.tasks):
            assert self.pool.used == len(own)

    @invariant()
    def there_are_no_more_calls_than_slots_and_than_the_target_permits(self):
        items = [item for slots in self.all_slots() for item in slots.all()]
        of_workers = [item for worker in self.workers for item in worker.started]
        calls = [one for one in [*items, *of_workers] if one.state is ItemState.CALLING]
        assert all(item.has_slot for item in calls)
        assert sum(item.has_slot for item in items) <= SLOTS - 1

    @invariant()
    def slot_of_a_stream_is_held_until_its_result_is_recorded(self):
        assert all(item.has_slot for item in self.workers[1].slots.all())

    def teardown(self):
        try:
            self.settle()
            for _ in range(100):
                if not any(worker.tables.waiting for worker in self.workers):
                    break
                self.finish_round()
            assert not any(worker.tables.waiting for worker in self.workers), (
                "one was lost sight of"
            )
        except BaseException:
            self.close()
            raise
        super().teardown()

    def finish_round(self):
        for worker in self.workers:
            worker.call(SLOTS)
            worker.finish(SLOTS, Accepted())
            worker.completer._first_at = 0.0
            for kind, service in (("record", worker.completer), ("claim", worker.loop)):
                self.begin(f"{kind} {worker.kind}", service.step(), is_answered=True)
        super().finish_round()


@pytest.mark.parametrize("examples", [FIXED, RANDOM], ids=["fixed", "random"])
def test_calls_of_all_scopes_share_the_slots_and_none_is_lost(examples):
    run_state_machine_as_test(ItemsOfAllScopes, settings=examples)


# Broken variants. Each script passes with the right code and fails with the broken one.


class FreesTheSlotOfAStream(Slots):
    def let_go(self, items, followed_by=()):
        del followed_by
        super().let_go(items)


def go_on_with_a_stream(machine):
    for _ in range(2):
        machine.workers[1].tables.enqueue(8)
    machine.claim(1, is_answered=True)
    for _ in range(2):
        machine.call_of_a_worker(1, SLOTS)
        machine.there_are_no_more_calls_than_slots_and_than_the_target_permits()
        machine.finish_of_a_worker(1, 1, Accepted())
        machine.record_of_a_worker(1, is_answered=True)


class CountsItsOwnScope(Slots):
    def in_flight_or_claimed(self, target):
        return sum(item.target == target and item.has_slot for item in self.all())


def claim_in_two_scopes_at_once(machine):
    for worker in machine.workers:
        worker.tables.enqueue(8)
    machine.claim(0, is_answered=False)
    machine.claim(1, is_answered=False)
    machine.settle()
    machine.there_are_no_more_calls_than_slots_and_than_the_target_permits()


@pytest.mark.parametrize(
    ("broken", "script"),
    [
        (FreesTheSlotOfAStream, go_on_with_a_stream),
        (CountsItsOwnScope, claim_in_two_scopes_at_once),
    ],
    ids=lambda one: one.__name__,
)
def test_model_of_all_scopes_refuses_the_broken_variant(broken, script):
    machine = ItemsOfAllScopes()
    script(machine)
    machine.teardown()
    machine = type("Broken", (ItemsOfAllScopes,), {"slots_class": broken})()
    with pytest.raises(AssertionError):
        script(machine)
    machine.close()
