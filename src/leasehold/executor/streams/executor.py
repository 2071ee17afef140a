"""The ordered executor works on streams: one head of each at a time, in the order of their commits.

It claims streams whose head is due, as many as it has free slots, and the claim marks the heads as
begun. When a head has its result, recording it returns the next head of the stream, begun too, so
a busy stream costs one visit per item. A stream without due work is freed at once. If the database
cannot tell whether a stream is drained, because an enqueuer's transaction is open, we hold the
stream and look again a moment later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.domain.intent import AttemptState
from leasehold.domain.lease import StreamState
from leasehold.executor.competing import Claims
from leasehold.executor.item import MARKED, RECORDING, Item
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
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import OrderedStore
    from leasehold.store.rows import StreamWork

# How long a stream rests whose enqueuer has not committed yet.
LOOK_AGAIN_SECONDS = 0.1
_IDLE_SECONDS = 1.0
TARGETS_MAX = 1000  # of one hint; polling finds the rest
_TARGETS_LOGGED = 20

_LOG = get_logger(__name__)


class OrderedExecutor:
    """Claims streams, and starts the next head of each; the service looks again at some."""

    name = "ordered executor"

    def __init__(
        self,
        store: OrderedStore,
        slots: Slots,
        streams: HeldStreams,
        targets: Targets,
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
        common = store, streams, slots.clock, self._kept, self.go_on
        self._begun = StreamFence(*common, is_begun=True)
        self._unbegun = StreamFence(*common, is_begun=False)
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
        return Claims(self._take(work, sent_at), Counter(one.lease.target for one in work))

    async def step(self) -> Pause:
        """Look again at streams that had nothing visible while an enqueuer was open.

        At a shutdown, leave that to others.
        """
        if self._streams.is_closing:
            await self.leave()
            return Pause(_IDLE_SECONDS)
        await self._hint()
        now = self._slots.clock()
        streams = self._streams.due_for_recheck(now)[: self._slots.free]
        if streams:
            with self._slots.reserved(len(streams)):
                work = await self._store.refresh_streams(
                    self._streams.holder_id, [one.lease for one in streams], begin=True
                )
                for one in streams:
                    one.recheck_at = None
                self._start(self._take(work, now))
            for one in streams:
                if not one.items and one.recheck_at is None:  # nothing was said about it
                    self._streams.forget(one)
            return AGAIN
        next_recheck_at = self._streams.next_recheck_at()
        if next_recheck_at is None:
            return Pause(_IDLE_SECONDS)
        return Pause(max(LOOK_AGAIN_SECONDS / 2, next_recheck_at - now))

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
        """Tell other instances of streams that we gave up with work in them."""
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

    def _kept(self, ended: Sequence[HeldStream]) -> list[Lease]:
        """Return the leases of those streams that we go on with: as many as their targets take, and
        not those whose slots others wait for.
        """
        rooms: dict[str, float] = {}
        kept: list[Lease] = []
        for one in ended:
            room = rooms.get(one.target)
            if room is None:
                room = self._targets.gate(one.target).room_to_go_on()
            if room > 0 and self._goes_on(one):
                kept.append(one.lease)
                room -= 1
            rooms[one.target] = room
        return [] if self._slots.memory.is_full else kept[self._slots.owed :]

    def _goes_on(self, held: HeldStream) -> bool:
        """Say whether we want to go on with a stream. One that shares its call has no slot."""
        return self._streams.is_kept(held) and any(map(self._slots.has_slot, held.items))

    def go_on(self, work: Iterable[StreamWork], sent_at: float) -> None:
        """Start the next heads of streams whose results were recorded."""
        self._start(self._take(work, sent_at))

    def _start(self, items: Sequence[Item]) -> None:
        if items:
            for target, calls in Counter(item.target for item in items).items():
                self._targets.gate(target).bucket.take(calls)
            self._slots.take(items)
            self._runner.start(items)

    def _take(self, works: Iterable[StreamWork], sent_at: float) -> list[Item]:
        """Learn what the database said of streams; return the items to start.

        Ignore a stream that was lost while the database answered: its lease was not extended, so it
        cannot be trusted anew.
        """
        items: list[Item] = []
        for work in works:
            held = self._streams.find(work.lease.lease.name)
            if held is None or held.lease.epoch != work.lease.lease.epoch:
                continue
            if not work.is_held:
                if work.state is StreamState.READY and not self._goes_on(held):
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
            elif work.state is StreamState.LOOK_AGAIN:
                self._streams.work_on(held, [])  # its last item ends, and must not end it too
                held.recheck_at = self._slots.clock() + LOOK_AGAIN_SECONDS
                self.wake.set()
            # Otherwise a call of ours is in flight.
        return items

    def _hold(
        self, lease: StreamLease, sent_at: float, lease_seconds: float, grace_seconds: float
    ) -> None:
        former = self._streams.find(lease.lease.name)
        if former is not None:
            # It had expired, and we took it over from ourselves. What we ask about under the former
            # epoch is asked again: its answer must not be recorded under the new one.
            self._slots.lose(former.items)
            self._forget(former, StreamState.LEASE_LOST)
        self._streams.hold(lease, sent_at, lease_seconds, grace_seconds)

    def _heads(self, held: HeldStream, work: StreamWork, sent_at: float) -> list[Item]:
        fence = self._begun if work.is_begun else self._unbegun
        timings = self._timings()
        # A call may outlast the first expiry many times over, as long as it is renewed.
        lease_seconds = timings.stream_claim_seconds + timings.stream_grace_seconds
        items: list[Item] = []
        # The runner begins only the first, which is enough for heads to ask about.
        is_asked = work.heads[0].last_state in (AttemptState.IN_DOUBT, AttemptState.SUBMITTED)
        for claimed in work.heads if work.is_begun or is_asked else work.heads[:1]:
            item = Item(claimed.intent_id.int, claimed.target, fence, held, MARKED)
            item.take(claimed, lease_seconds, sent_at)
            item.is_begun = work.is_begun
            items.append(item)
        self._streams.work_on(held, items)
        # One call submits all of them, or asks about them; the first stands for the others.
        first, *followers = items
        first.followers = followers
        if is_asked:
            self._slots.join(followers)
        else:
            self._slots.take(followers)
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
