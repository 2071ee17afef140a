"""The stream holder works on streams: one head of each at a time, in the order of their commits.

It claims streams whose head is due, as many as it has free slots, and the claim marks the heads as
begun. The record of a head's result returns the next head of the stream, begun too, and the slot
passes to it: a busy stream costs one statement per item. A stream without due work is freed at
once. If the database cannot tell whether a stream is drained, because an enqueuer's transaction is
open, we hold the stream and look at it again a moment later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.domain.intent import AttemptState
from leasehold.domain.lease import StreamState
from leasehold.executor.claim_loop import Claims
from leasehold.executor.item import MARKED, RECORDING, Item, Slot
from leasehold.executor.log_budget import LogBudget
from leasehold.executor.streams.fence import StreamFence
from leasehold.executor.streams.held import STREAMS_MAX
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.domain.lease import Lease, StreamLease
    from leasehold.domain.timing import Timings
    from leasehold.executor.runner import Runner
    from leasehold.executor.slots import Slots
    from leasehold.executor.streams.held import HeldStream, HeldStreams
    from leasehold.executor.targets import ScopeTargets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import OrderedStore
    from leasehold.store.rows import StreamWork

# How long a stream rests whose enqueuer has not committed yet.
RECHECK_SECONDS = 0.1
_IDLE_SECONDS = 1.0
TARGETS_MAX = 1000  # of one hint; polling finds the rest
_TARGETS_LOGGED = 20

_LOG = get_logger(__name__)


class StreamHolder:
    """Claims streams and learns their next heads. The service looks again at some streams."""

    name = "stream holder"

    def __init__(
        self,
        store: OrderedStore,
        slots: Slots,
        streams: HeldStreams,
        targets: ScopeTargets,
        runner: Runner,
        metrics: Metrics,
        timings: Callable[[], Timings],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._slots = slots
        self._streams = streams
        self._targets = targets
        self._runner = runner
        self._metrics = metrics
        self._timings = timings
        self._pauses = LogBudget(_LOG, "stream_paused")
        self.clock = slots.clock
        self._begun = StreamFence(store, streams, self, is_begun=True)
        self._unbegun = StreamFence(store, streams, self, is_begun=False)
        slots.on_free(self._on_free)

    async def claim(
        self,
        batch_size: int,
        lease_seconds: float,
        rooms: Mapping[str, int],
        due_from: Sequence[datetime] | None,
    ) -> Claims:
        """Claim streams whose head is due, and return their heads as items."""
        sent_at = self._slots.clock()
        grace_seconds = self._timings().stream_grace_seconds
        work = await self._store.claim_streams(
            batch_size,
            self._streams.holder_id,
            lease_seconds,
            grace_seconds,
            list(rooms),
            list(rooms.values()),
            due_from,
            begin=True,
        )
        self._report_takeover(Counter(one.lease.target for one in work if one.is_taken_over))
        for one in work:
            if one.is_held and one.state is not StreamState.BEGUN:
                self._hold(one.lease, sent_at, lease_seconds, grace_seconds)
        return Claims(self.learn(work, sent_at), Counter(one.lease.target for one in work))

    async def step(self) -> Pause:
        """Look again at streams that had nothing visible while an enqueuer was open.

        At a shutdown, leave that to others.
        """
        if self._streams.is_closing:
            await self.leave()
            return Pause(_IDLE_SECONDS)
        await self._hint()
        now = self._slots.clock()
        due = self._streams.due_for_recheck(now)[:STREAMS_MAX]
        if due:
            streams, others = self._by_room(due)
            with self._slots.reserved(len(streams), Counter(one.target for one in streams)):
                heads = self.learn(await self._look_again(streams, begin=True), now)
                self._slots.take(heads)
                self.start(heads)
            await self._pass_on(others, now)
            for one in due:
                if not one.items and one.recheck_at is None:  # nothing was said about it
                    self._streams.forget(one)
            return AGAIN
        next_recheck_at = self._streams.next_recheck_at()
        if next_recheck_at is None:
            return Pause(_IDLE_SECONDS)
        return Pause(max(RECHECK_SECONDS / 2, next_recheck_at - now))

    def _by_room(self, streams: Sequence[HeldStream]) -> tuple[list[HeldStream], list[HeldStream]]:
        """Return the streams whose heads we may start, and the others.

        While we held them they used neither a slot nor room of their targets.
        """
        free = self._slots.free
        rooms: dict[str, int] = {}
        may_start: list[HeldStream] = []
        others: list[HeldStream] = []
        for one in streams:
            if one.target not in rooms:
                in_flight = self._slots.in_flight_or_claimed(one.target)
                rooms[one.target] = self._targets.gate(one.target).room(in_flight)
            if rooms[one.target] > 0 and len(may_start) < free:
                rooms[one.target] -= 1
                may_start.append(one)
            else:
                others.append(one)
        return may_start, others

    async def _look_again(
        self, streams: Sequence[HeldStream], *, begin: bool
    ) -> Sequence[StreamWork]:
        if not streams:
            return []
        work = await self._store.refresh_streams(
            self._streams.holder_id, [one.lease for one in streams], begin=begin
        )
        for one in streams:
            one.recheck_at = None
        return work

    async def _pass_on(self, streams: Sequence[HeldStream], now: float) -> None:
        """Look again at streams that we have no room for. Release those that have a head by now."""
        work = await self._look_again(streams, begin=False)
        self.learn([one for one in work if one.state is not StreamState.READY], now)
        ready = [one.lease for one in work if one.state is StreamState.READY]
        if ready:
            self._streams.freed_targets.update(one.target for one in ready)
            await self._store.release_streams(self._streams.holder_id, [one.lease for one in ready])

    async def leave(self) -> None:
        """Release the streams that have no call in flight."""
        idle = [one for one in self._streams.all() if not one.items]
        for start in range(0, len(idle), STREAMS_MAX):
            some = idle[start : start + STREAMS_MAX]
            await self._store.release_streams(self._streams.holder_id, [one.lease for one in some])
            for one in some:
                self._streams.forget(one)
        await self._hint()

    async def _hint(self) -> None:
        """Tell other instances of streams that we gave up although work is due in them."""
        freed, self._streams.freed_targets = self._streams.freed_targets, set()
        if freed:
            await self._store.notify_targets(sorted(freed)[:TARGETS_MAX])

    def _report_takeover(self, streams: Counter[str]) -> None:
        if streams:
            _LOG.warning(
                "streams_taken_over",
                worker_id=self._streams.holder_id,
                streams=streams.total(),
                targets=sorted(streams)[:_TARGETS_LOGGED],
            )
            for target, count in streams.items():
                self._metrics.streams_taken_over(target, count)

    def leases_to_continue(self, ended: Sequence[HeldStream]) -> list[Lease]:
        """Return the leases of the streams whose next heads we start after these results.

        They are as many as their targets have room for, without those whose slots others wait for.
        """
        rooms: dict[str, float] = {}
        continued: list[Lease] = []
        for one in ended:
            room = rooms.get(one.target)
            if room is None:
                room = self._targets.gate(one.target).room_to_continue()
            if room > 0 and self._may_continue(one):
                continued.append(one.lease)
                room -= 1
            rooms[one.target] = room
        return [] if self._slots.memory.is_full else continued[self._slots.owed :]

    def _may_continue(self, held: HeldStream) -> bool:
        """Say whether we may start the next head. It needs the slot of the last one."""
        return self._streams.may_continue(held) and any(item.has_slot for item in held.items)

    def start(self, heads: Sequence[Item]) -> None:
        """Start heads, which have their slots."""
        if heads:
            for target, calls in Counter(item.target for item in heads).items():
                self._targets.gate(target).bucket.take(calls)
            self._runner.start(heads)

    def learn(self, works: Iterable[StreamWork], sent_at: float) -> list[Item]:
        """Learn what the database said of streams; return the heads to start.

        Whatever it said replaces the items of a stream, before those that have ended are let go.
        Ignore a stream that was lost while the database answered: its lease was not extended, so it
        cannot be trusted anew.
        """
        items: list[Item] = []
        for work in works:
            held = self._streams.find(work.lease.lease.name)
            if held is None or held.lease.epoch != work.lease.lease.epoch:
                continue
            if not work.is_held:
                if work.state is StreamState.READY and not self._may_continue(held):
                    self._streams.freed_targets.add(held.target)
                    self.wake.set()
                if work.state is StreamState.PAUSED:
                    self._pauses.warn(
                        worker_id=self._streams.holder_id,
                        target=work.lease.target,
                        stream=work.lease.stream,
                        # None: until a person resumes it.
                        seconds=work.wait_seconds and round(work.wait_seconds, 3),
                    )
                self._forget(held, work.state)
            elif work.state is StreamState.READY:
                held.recheck_at = None
                items += self._heads(held, work, sent_at)
            elif work.state is StreamState.RECHECK:
                held.items = []
                held.recheck_at = self._slots.clock() + RECHECK_SECONDS
                self.wake.set()
            # Otherwise a call of ours is in flight.
        return items

    def _hold(
        self, lease: StreamLease, sent_at: float, lease_seconds: float, grace_seconds: float
    ) -> None:
        former = self._streams.find(lease.lease.name)
        if former is not None:
            # It had expired, and we took it over from ourselves. A lookup that was made under the
            # former epoch is repeated: its answer must not be recorded under the new one.
            self._slots.lose(former.items)
            self._forget(former, StreamState.LEASE_LOST)
        self._streams.hold(lease, sent_at, lease_seconds, grace_seconds)

    def _heads(self, held: HeldStream, work: StreamWork, sent_at: float) -> list[Item]:
        fence = self._begun if work.is_begun else self._unbegun
        timings = self._timings()
        # A call may outlast the first expiry many times over, as long as it is renewed.
        lease_seconds = timings.stream_claim_seconds + timings.stream_grace_seconds
        items: list[Item] = []
        # The runner begins only the first, which is enough for heads that are looked up.
        is_lookup = work.heads[0].last_state in (AttemptState.IN_DOUBT, AttemptState.SUBMITTED)
        for claimed in work.heads if work.is_begun or is_lookup else work.heads[:1]:
            item = Item(claimed.intent_id.int, claimed.target, fence, held, MARKED)
            item.work_under(claimed, lease_seconds, sent_at)
            item.stream = held
            item.is_begun = work.is_begun
            items.append(item)
        held.items = items
        # One call submits all of them, or looks them up; the first stands for the others.
        first, *first.followers = items
        if is_lookup:
            for one in first.followers:
                one.slot = Slot.SHARED
        return [first]

    def _forget(self, held: HeldStream, state: StreamState) -> None:
        if state is StreamState.LEASE_LOST:
            self._metrics.lease_lost()
            _LOG.warning(
                "lease_lost", worker_id=self._streams.holder_id, lease_name=held.lease.name
            )
        self._streams.forget(held)

    def _on_free(self, ended: Sequence[Item]) -> None:
        for item in ended:
            self._streams.end(item)
            # The others of its batch, unless they have results of their own.
            self._slots.let_go([one for one in item.followers if one.state < RECORDING])
