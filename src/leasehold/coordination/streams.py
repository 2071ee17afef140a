"""The streams that this instance holds, and the heartbeat that renews their leases.

A stream is held while one of its heads is being worked on, or while it must be looked at again. It
has two expiries. After the first, nothing new may begin; after the second, no result is written.
So a slow call keeps its stream, and a dead holder loses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from leasehold.domain.lease import TrustWindow
from leasehold.domain.verdict import RenewVerdict
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from leasehold.coordination.item import Item
    from leasehold.coordination.slots import Slots
    from leasehold.domain.lease import Lease, StreamLease
    from leasehold.domain.timing import Timings
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import StreamHeartbeatStore

TARGETS_MAX = 1000  # of one call
STREAMS_MAX = 2000  # in one call; more may be held, because those to look at need no slot

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class HeldStream:
    """A stream that we hold. It is the trust of the items that are worked on under its lease."""

    target: str
    lease: Lease
    first: TrustWindow
    second: TrustWindow
    since: float  # when we asked for it
    items: list[Item] = field(default_factory=list["Item"])
    look_at: float | None = None  # when to look again; then it has no items
    is_surplus: bool = False  # it is given up after its present call, for others

    def extend(
        self, now: float, asked_at: float, lease_seconds: float, grace_seconds: float
    ) -> bool:
        """Trust the lease anew after an answer that came now, counted from before it was asked for.

        Return whether it came in time: trust that has ended never comes back.
        """
        if self.is_over(now):
            return False
        self.trust(asked_at, lease_seconds, grace_seconds)
        return True

    def trust(self, asked_at: float, lease_seconds: float, grace_seconds: float) -> None:
        """Trust the lease for this long, counted from before it was asked for."""
        self.first = TrustWindow.counted_from(asked_at, lease_seconds)
        self.second = TrustWindow.counted_from(asked_at, lease_seconds + grace_seconds)

    def is_over(self, now: float) -> bool:
        """Whether no result may be written any more."""
        return self.second.is_over(now)

    def may_start(self, now: float) -> bool:
        """Whether a new call may begin."""
        return self.first.may_start(now)

    def may_start_later(self, now: float) -> bool:
        """Whether a call may begin when a late renewal is answered."""
        return not self.is_over(now)

    def seconds_left(self, now: float) -> float:
        """How long results may be written."""
        return self.second.seconds_left(now)


class HeldStreams:
    """The streams of this instance, by the names of their leases."""

    def __init__(self, holder_id: str) -> None:
        self.holder_id = holder_id
        self.is_closing = False
        self.freed_targets: set[str] = set()  # of which others can go on with streams
        self._held: dict[str, HeldStream] = {}
        self._of_item: dict[int, HeldStream] = {}  # by the integer of the intent's id

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[HeldStream]:
        """Return all streams that we hold."""
        return list(self._held.values())

    def find(self, lease_name: str) -> HeldStream | None:
        """Return a stream that we hold."""
        return self._held.get(lease_name)

    def hold(
        self, lease: StreamLease, asked_at: float, lease_seconds: float, grace_seconds: float
    ) -> HeldStream:
        """Hold a stream that was claimed."""
        window = TrustWindow.counted_from(asked_at, 0)
        held = HeldStream(lease.target, lease.lease, window, window, asked_at)
        held.trust(asked_at, lease_seconds, grace_seconds)
        self._held[lease.lease.name] = held
        return held

    def of(self, intent_no: int) -> HeldStream | None:
        """Return the stream of an item that is being worked on."""
        return self._of_item.get(intent_no)

    def work_on(self, held: HeldStream, items: list[Item]) -> None:
        """Replace the items of a stream that are being worked on."""
        for item in held.items:
            self._of_item.pop(item.intent_no, None)
        held.items = items
        for item in items:
            self._of_item[item.intent_no] = held

    def forget(self, held: HeldStream) -> None:
        """Hold a stream no longer: it is freed, or lost, or left to expire."""
        if self._held.get(held.lease.name) is held:
            del self._held[held.lease.name]
            self.work_on(held, [])

    def end(self, item: Item) -> None:
        """Leave a stream to expire whose item ended without a word from the database."""
        if self.has(item):
            self.forget(self._of_item[item.intent_no])

    def has(self, item: Item) -> bool:
        """Say whether an item is being worked on. It may have been replaced by a newer one."""
        held = self._of_item.get(item.intent_no)
        return held is not None and item in held.items

    def is_kept(self, held: HeldStream) -> bool:
        """Say whether we may go on with a stream after its present call."""
        return not self.is_closing and not held.is_surplus

    def to_look_at(self, now: float) -> list[HeldStream]:
        """Return the streams that must be looked at again now."""
        return [
            one for one in self._held.values() if one.look_at is not None and one.look_at <= now
        ]

    def next_look(self) -> float | None:
        """Return when the next stream must be looked at again."""
        return min(
            (one.look_at for one in self._held.values() if one.look_at is not None), default=None
        )

    def count(self) -> Counter[str]:
        """Count the streams by target."""
        return Counter(one.target for one in self._held.values())

    def keep_at_most(self, target: str, count: int) -> None:
        """Give up the streams of a target beyond this number, each after its present call."""
        kept = [one for one in self._held.values() if one.target == target and not one.is_surplus]
        for one in kept[count:]:
            one.is_surplus = True

    def give_up(self) -> None:
        """Give up all streams, each after its present call."""
        for one in self._held.values():
            one.is_surplus = True

    def end_turns(self, target: str, count: int, since: float) -> None:
        """Give up as many streams of a target as others of it wait, those first that we have had
        for longest, and none that we have had for a shorter time.

        Their heads go to the end of the line. Otherwise streams that always have work would keep
        their slots for ever.
        """
        streams = [one for one in self._held.values() if one.target == target and one.items]
        ending = sum(one.is_surplus for one in streams)
        over = [one for one in streams if one.since <= since and not one.is_surplus]
        for one in sorted(over, key=attrgetter("since"))[: max(0, count - ending)]:
            one.is_surplus = True


class StreamHeartbeat:
    """The service that renews the streams, aborts calls that take too long, and gives streams up
    for instances that have none and for other streams that wait.
    """

    name = "stream heartbeat"

    def __init__(
        self,
        store: StreamHeartbeatStore,
        slots: Slots,
        streams: HeldStreams,
        timings: Callable[[], Timings],
        metrics: Metrics,
        abort: Callable[[Item], None],
        is_crowded: Callable[[str], bool],
        leave_to_others: Callable[[str, float], None],
        during_renewal: Callable[[], Awaitable[None]],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._slots = slots
        self._streams = streams
        self._timings = timings
        self._metrics = metrics
        self._abort = abort
        self._is_crowded = is_crowded
        self._leave_to_others = leave_to_others
        self._during_renewal = during_renewal

    async def step(self) -> Pause:
        """Renew every stream once. If that fails, trust runs out by itself."""
        timings = self._timings()
        started_at = self._slots.clock()
        for item in self._slots.overdue():
            self._abort(item)
        self._lose([one for one in self._streams.all() if one.is_over(started_at)], "trust ended")
        renewable = [one for one in self._streams.all() if self._is_renewable(one)]
        for start in range(0, len(renewable), STREAMS_MAX):
            await self._renew(renewable[start : start + STREAMS_MAX], timings)
        await self._end_turns(started_at - timings.heartbeat_seconds)
        if len(self._streams):
            for one in await self._store.surplus_streams(self._streams.holder_id):
                self._streams.keep_at_most(one.target, one.kept)
                self._leave_to_others(one.target, timings.heartbeat_seconds)
        return Pause(max(0.0, started_at + timings.heartbeat_seconds - self._slots.clock()))

    async def _end_turns(self, since: float) -> None:
        crowded = [target for target in self._streams.count() if self._is_crowded(target)]
        if crowded:
            for one in await self._store.waiting_streams(crowded[:TARGETS_MAX], STREAMS_MAX):
                self._streams.end_turns(one.target, one.waiting, since)

    def _is_renewable(self, held: HeldStream) -> bool:
        now = self._slots.clock()
        return all(item.abort_at > now and not item.is_lost for item in held.items)

    async def _renew(self, streams: Sequence[HeldStream], timings: Timings) -> None:
        asked_at = self._slots.clock()
        seconds = timings.stream_claim_seconds, timings.stream_grace_seconds
        call = self._store.renew_streams(
            self._streams.holder_id, [one.lease for one in streams], *seconds
        )
        left = min(one.seconds_left(asked_at) for one in streams)
        answers, _ = await asyncio.gather(
            within_deadline(left, call, "the stream heartbeat"), self._during_renewal()
        )
        renewed = {one.lease_name for one in answers if one.verdict is RenewVerdict.RENEWED}
        # A stream that was freed meanwhile is not lost: we do not hold it any more.
        held = [one for one in streams if self._streams.find(one.lease.name) is one]
        self._lose([one for one in held if one.lease.name not in renewed], "refused")
        now = self._slots.clock()
        granted = [one for one in held if one.lease.name in renewed]
        late = [one for one in granted if not one.extend(now, asked_at, *seconds)]
        self._lose(late, "the answer to the renewal is late")

    def _lose(self, streams: Iterable[HeldStream], reason: str) -> None:
        for held in streams:
            items = held.items
            self._streams.forget(held)
            self._metrics.lease_lost()
            _LOG.warning(
                "lease_lost",
                worker_id=self._streams.holder_id,
                lease_name=held.lease.name,
                lease_epoch=held.lease.epoch,
                reason=reason,
            )
            self._slots.lose(items)
