"""A renewal that is answered after trust has ended revives nothing, in any scope."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leasehold.coordination.elector import TRUST_ENDED, Elector
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.errors import LeaseLost
from leasehold.domain.lease import TrustWindow
from leasehold.domain.timing import Timings
from leasehold.executor.fences import ClaimFence
from leasehold.executor.heartbeat import Heartbeat
from leasehold.executor.item import claimed_items
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.streams.heartbeat import StreamHeartbeat
from leasehold.executor.streams.held import HeldStreams
from leasehold.observe.metrics import Metrics

pytestmark = pytest.mark.one_server


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class LateStore:
    """The real store, but this many seconds pass before it answers one function."""

    def __init__(self, store, clock, name, seconds):
        self._store, self._clock, self._name, self._seconds = store, clock, name, seconds

    def __getattr__(self, name):
        call = getattr(self._store, name)
        if name != self._name:
            return call

        async def late(*arguments):
            answer = await call(*arguments)
            self._clock.now += self._seconds
            return answer

        return late


class IdleSession:
    async def finish(self, seconds):
        pass

    async def abandon(self):
        pass


async def test_leader_steps_down_if_the_answer_to_its_renewal_is_late(stores):
    clock = Clock()
    store = LateStore(stores.executor, clock, "renew_lease", 45.0)
    elector = Elector(
        "leader",
        "a",
        RowLease(store, "leader", "a", Timings),
        Metrics(),
        lambda _elector, _term: IdleSession(),
        clock,
    )
    await elector.step()
    term = elector.term
    clock.now += 20.0  # a renewal counted from now would last 60 seconds, trust 40
    with pytest.raises(LeaseLost):
        await elector.confirm(term)
    assert term.ended.is_set()
    assert term.closing_reason == TRUST_ENDED
    assert not elector.is_leader


async def test_claim_is_lost_if_the_answer_to_its_renewal_is_late(outbox, stores):
    outbox.publish("sms")
    outbox.enqueue(1)
    clock = Clock()
    slots = Slots("w", SlotPool(10, clock))
    claimed = await stores.executor.claim_outbox_batch(1, "w", 30, ["sms"])
    trust = TrustWindow.counted_from(clock(), 30)
    [item] = claimed_items(claimed, ClaimFence(stores.executor, "w"), trust, 30, clock())
    slots.take([item])
    clock.now += 10.0
    store = LateStore(stores.executor, clock, "renew_outbox_leases", 25.0)
    await Heartbeat(store, slots, Timings, Metrics(), abort=lambda _: None).step()
    assert item.is_lost


async def test_stream_is_given_up_if_the_answer_to_its_renewal_is_late(outbox, stores):
    outbox.publish("pay", scope="stream")
    outbox.enqueue(1, "pay", stream="s")
    clock = Clock()
    slots = Slots("w", SlotPool(10, clock))
    streams = HeldStreams("w")
    [work] = await stores.executor.claim_streams(1, "w", 30, 150, ["pay"], [1], None, begin=True)
    held = streams.hold(work.lease, clock(), 30, 150)
    clock.now += 10.0
    heartbeat = StreamHeartbeat(
        LateStore(stores.executor, clock, "renew_streams", 175.0),
        slots,
        streams,
        Timings,
        Metrics(),
        runner=None,
        claims=SimpleNamespace(is_crowded=lambda _: False),
    )
    await heartbeat.step()
    assert held.is_over(clock())
    assert len(streams) == 0


async def test_stream_whose_lease_is_locked_delays_no_other_and_is_renewed_soon(outbox, stores):
    outbox.publish("pay", scope="stream")
    for name in ("free", "locked"):
        outbox.enqueue(1, "pay", stream=name)
    clock = Clock()
    streams = HeldStreams("w")
    claimed = await stores.executor.claim_streams(2, "w", 30, 150, ["pay"], begin=True)
    held = {one.lease.stream: streams.hold(one.lease, clock(), 30, 150) for one in claimed}
    person = outbox.database.session()
    person.run("BEGIN")
    person.run("SELECT FROM leasehold.leases WHERE stream = 'locked' FOR UPDATE")
    heartbeat = StreamHeartbeat(
        stores.executor,
        Slots("w", SlotPool(10, clock)),
        streams,
        Timings,
        Metrics(),
        runner=None,
        claims=SimpleNamespace(is_crowded=lambda _: False),
    )
    clock.now += 10.0
    assert (await heartbeat.step()).seconds == 1.0
    left = {name: one.seconds_left(clock()) for name, one in held.items()}
    assert left["locked"] == left["free"] - 10
    person.run("ROLLBACK")
    clock.now += 1.0
    assert (await heartbeat.step()).seconds == Timings().heartbeat_seconds - 1
    left = {name: one.seconds_left(clock()) for name, one in held.items()}
    assert left["free"] == left["locked"] - 1, "only the one that was locked is renewed again"
    assert len(streams) == 2
