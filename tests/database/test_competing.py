"""The claim loop on a real database: no target waits for ever while others are busy.

The executor, its slots and its marks are real. The clock of the worker stands still unless a test
moves it, and no call is made: a test ends the calls that were started.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.domain.timing import Timings
from leasehold.executor import claim_loop
from leasehold.executor.claim_loop import ClaimLoop, ItemClaimer
from leasehold.executor.claim_size import GATHER_SECONDS, CallTimes
from leasehold.executor.heartbeat import Heartbeat
from leasehold.executor.limits import Gate
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.streams.held import HeldStreams
from leasehold.executor.streams.holder import StreamHolder
from leasehold.observe.metrics import Metrics

pytestmark = pytest.mark.one_server


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Calls:
    """Stands for the runner: keeps what was started until a test ends it."""

    times = CallTimes(Metrics())

    def __init__(self):
        self.items = []

    def start(self, items):
        self.items += items


class Served:
    """Targets with their lengths of lease, each with a gate."""

    def __init__(self, clock, leases, concurrency):
        self.current = {
            target: SimpleNamespace(lease_seconds=seconds) for target, seconds in leases.items()
        }
        gates = {target: Gate(concurrency.get(target, 100), None, clock) for target in leases}
        self.gate = gates.__getitem__


class Worker:
    def __init__(self, store, leases, *, slots, concurrency=None, of_streams=False):
        self.clock = Clock()
        self.slots = Slots("worker-1", SlotPool(slots, self.clock))
        self.calls = Calls()
        self.troubles = []
        served = Served(self.clock, leases, concurrency or {})
        streams = HeldStreams("worker-1")
        self.executor = ClaimLoop(
            "executor",
            store,
            StreamHolder(store, self.slots, streams, served, self.calls, Metrics(), Timings)
            if of_streams
            else ItemClaimer(store, self.slots),
            self.slots,
            served,
            self.calls,
            Metrics(),
            Timings,
            lease_seconds=lambda target: served.current[target].lease_seconds,
            on_error=self.troubles.append,
        )

    async def step(self, seconds=GATHER_SECONDS):
        """Let time pass, claim once, and return what was started."""
        self.clock.now += seconds
        before = len(self.calls.items)
        await self.executor.step()
        return self.calls.items[before:]

    def end_calls(self, target=None):
        ended = [item for item in self.calls.items if target in (None, item.target)]
        self.calls.items = [item for item in self.calls.items if item not in ended]
        self.slots.let_go(ended)


@pytest.fixture
def publish(outbox):
    def publish(*targets):
        for target in targets:
            outbox.publish(target)

    return publish


async def test_floods_of_one_length_of_lease_do_not_starve_the_others(outbox, stores, publish):
    floods = {"flood-1": 30, "flood-2": 30}
    others = {f"other-{number}": 30 + number for number in range(1, 6)}
    publish(*floods, *others)
    for target in floods:
        outbox.enqueue(300, target)
    for target in others:
        outbox.enqueue(1, target)
    worker = Worker(stores.executor, floods | others, slots=4)
    seen = set()
    for _ in range(60):
        seen |= {item.target for item in await worker.step()}
        worker.end_calls()
    assert seen == floods.keys() | others.keys()


async def test_no_target_starves_beside_more_than_one_claim_may_name(
    outbox, stores, publish, monkeypatch
):
    monkeypatch.setattr(claim_loop, "TARGETS_MAX", 2)
    targets = [f"flood-{number}" for number in range(6)]
    publish(*targets)
    for target in targets:
        outbox.enqueue(100, target)
    worker = Worker(stores.executor, dict.fromkeys(targets, 30), slots=2)
    seen = set()
    for _ in range(50):
        seen |= {item.target for item in await worker.step()}
        worker.end_calls()
    assert seen == set(targets)


async def test_late_intent_of_a_target_that_is_busy_at_each_poll_is_found(outbox, stores, publish):
    """Another target has room at each poll, so the full walk is made without the busy one."""
    publish("busy", "idle")
    outbox.enqueue(1, "busy")
    worker = Worker(stores.executor, {"busy": 30, "idle": 30}, slots=4, concurrency={"busy": 1})
    assert len(await worker.step()) == 1
    [late] = enqueue_late(outbox, 1, "busy")
    outbox.enqueue(40, "busy")
    found = set()
    for _ in range(30):
        assert await worker.step(1.0) == []  # a poll, with a call of the busy target in flight
        worker.end_calls()
        found |= {item.claimed.intent_id for item in await worker.step()}
    assert late in found


async def test_intents_that_are_committed_late_together_do_not_wait_for_a_poll_each_batch(
    outbox, stores, publish
):
    publish("sms")
    outbox.enqueue(1)
    worker = Worker(stores.executor, {"sms": 30}, slots=5)
    assert len(await worker.step()) == 1
    worker.end_calls()
    enqueue_late(outbox, 50, "sms")
    found = len(await worker.step(1.0))
    for _ in range(9):
        worker.end_calls()
        found += len(await worker.step())
    assert found == 50


class SlowWalks:
    """A store whose full walks take long on the worker's clock."""

    def __init__(self, store):
        self._store = store
        self.clock = None
        self.full_walks = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def claim_outbox_batch(self, *arguments):
        if arguments[-1] is None:
            self.full_walks += 1
            self.clock.now += 0.5
        return await self._store.claim_outbox_batch(*arguments)


@pytest.mark.every_server
async def test_intent_that_is_committed_late_needs_no_full_walk_if_these_are_slow(
    outbox, stores, publish
):
    publish("sms")
    store = SlowWalks(stores.executor)
    worker = Worker(store, {"sms": 30}, slots=5)
    store.clock = worker.clock
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [late] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    for _ in range(3):
        outbox.database.execute("SELECT pg_sleep(0.06)")
        outbox.enqueue(1)
        assert len(await worker.step(1.0)) == 1
        worker.end_calls()
    slow.run("COMMIT")
    [found] = await worker.step(1.0)
    assert (found.claimed.intent_id, store.full_walks) == (late["intent_id"], 1)


class Unavailable:
    """A store that does not answer."""

    def __getattr__(self, name):
        async def fail(*_):
            raise DatabaseUnavailable(name)

        return fail


async def test_look_that_gets_no_answer_wakes_the_heartbeat_and_is_repeated():
    worker = Worker(Unavailable(), {"sms": 30}, slots=5)
    for looks in (1, 2):
        with pytest.raises(DatabaseUnavailable):
            await worker.step()
        assert len(worker.troubles) == looks


async def test_late_intent_is_found_among_more_busy_targets_than_slots(outbox, stores, publish):
    """A claim for two slots looks at two targets only, so a full walk does not reach them all."""
    targets = [f"flood-{number}" for number in range(12)]
    publish(*targets)
    for target in targets:
        outbox.enqueue(1, target)
    worker = Worker(stores.executor, dict.fromkeys(targets, 30), slots=2)
    for _ in range(10):
        await worker.step(1.0)
        worker.end_calls()
    [late] = enqueue_late(outbox, 1, "flood-0")
    for target in targets:
        outbox.enqueue(50, target)
    worker.clock.now += 1.0  # from now on it stands still, so there is one poll
    found = set()
    for _ in range(150):
        found |= {item.claimed.intent_id for item in await worker.step(0.0)}
        worker.end_calls()
    assert late in found


async def test_streams_that_turn_out_to_be_paused_hide_none_behind_them(outbox, stores):
    """A claim that is full of them returns no head, but has not looked at what is due later."""
    outbox.publish("pay", scope="stream")
    for number in range(7):
        [first] = outbox.enqueue(1, "pay", stream=f"paused-{number}")
        outbox.call("operator", "cancel_intent", first, "ada", "not this one")
        outbox.call("operator", "pause_stream", "pay", f"paused-{number}", "ada", "later", 60)
        outbox.enqueue(1, "pay", stream=f"paused-{number}")
    [ready] = outbox.enqueue(1, "pay", stream="ready")
    worker = Worker(stores.executor, {"pay": 30}, slots=3, of_streams=True)
    found = [await worker.step() for _ in range(4)]
    assert [item.claimed.intent_id for items in found for item in items] == [ready]


async def test_head_of_an_expired_stream_does_not_say_how_far_a_full_walk_came(outbox, stores):
    """It is taken before the others, although it is due after them."""
    outbox.publish("pay", scope="stream")
    worker = Worker(stores.executor, {"pay": 30}, slots=3, of_streams=True)
    assert await worker.step() == []
    outbox.enqueue(1, "pay", stream="expired")
    [lost] = outbox.call("executor", "claim_streams", 1, "dead", 30, 150, ["pay"])
    outbox.expire_lease(lost["lease_name"])
    for number in range(7):
        enqueue_late(outbox, 1, "pay", stream=f"late-{number}")
    found = len(await worker.step(1.0))
    for _ in range(3):
        worker.end_calls()
        found += len(await worker.step())
    assert found == 8


async def test_heartbeat_renews_more_claims_than_one_call_may_name(outbox, stores, publish):
    """Items whose result waits are renewed too, so there may be thrice as many as slots."""
    publish("sms")
    worker = Worker(stores.executor, {"sms": 30}, slots=5000, concurrency={"sms": 5000})
    for _ in range(3):
        for _ in range(4):
            outbox.enqueue(1000)
        for item in await worker.step(1.0):
            worker.slots.end_call(item)
    assert len(worker.slots) == 12_000
    beat = Heartbeat(stores.executor, worker.slots, Timings, Metrics(), abort=lambda _: None)
    await beat.step()
    assert not any(item.is_lost for item in worker.slots.all())


def enqueue_late(outbox, count, target, **fields):
    """As if the transaction that enqueued had been open for an hour."""
    ids = outbox.enqueue(count, target, **fields)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '1 hour'"
        " WHERE intent_id = ANY (%s)",
        [ids],
    )
    return ids
