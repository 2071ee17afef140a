"""The claim loop claims work for the slots that are free, and starts it at once. What it claims is
the claimer's affair: due items, or streams whose head is due (`streams/holder.py`).

It claims only what can start now: free slots and each target's gate bound every claim. A claim also
shrinks if its calls, one after the other, would outlive the lease.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.domain.intent import queue_delays
from leasehold.domain.lease import TrustWindow
from leasehold.executor.claim_size import (
    GATHER_SECONDS,
    claim_size,
    may_be_cut,
    should_gather,
)
from leasehold.executor.faults import NO_FAULTS, FaultPoint, while_reaching
from leasehold.executor.fences import ClaimFence
from leasehold.executor.item import claimed_items
from leasehold.executor.low_water import LowWaterMarks
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from leasehold.domain.intent import Claimed
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.item import Item
    from leasehold.executor.runner import Runner
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import ScopeTargets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import ItemStore, LowWaterStore

# The pause between polls: the shortest after work was found, doubled each time there was none.
POLL_SECONDS_MIN = 0.1
TARGETS_MAX = 1000  # of one claim

Answer = TypeVar("Answer")


class Claims(NamedTuple):
    """What a claim took: the items to start, and how many items or streams of each target.

    A stream that was taken may have nothing to start, because it is paused, for example.
    """

    items: list[Item]
    taken: Mapping[str, int]


class Claimer(Protocol):
    """What is claimed: items, or streams with their heads."""

    async def claim(
        self,
        batch_size: int,
        lease_seconds: float,
        rooms: Mapping[str, int],
        due_from: Sequence[datetime] | None,
    ) -> Claims:
        """Claim for these targets, for each as much as it has room for."""
        ...


class ItemClaimer:
    """Claims items, each under a token of its own."""

    def __init__(self, store: ItemStore, slots: Slots) -> None:
        self._store = store
        self._slots = slots
        self._fence = ClaimFence(store, slots.worker_id)

    async def claim(
        self,
        batch_size: int,
        lease_seconds: float,
        rooms: Mapping[str, int],
        due_from: Sequence[datetime] | None,
    ) -> Claims:
        """Claim due items."""
        sent_at = self._slots.clock()
        claimed = await self._store.claim_outbox_batch(
            batch_size,
            self._slots.worker_id,
            lease_seconds,
            list(rooms),
            list(rooms.values()),
            due_from,
        )
        trust = TrustWindow.counted_from(sent_at, lease_seconds)
        items = claimed_items(claimed, self._fence, trust, lease_seconds, sent_at)
        return Claims(items, Counter(one.target for one in claimed))


class ClaimLoop:
    """The service that claims for one scope."""

    def __init__(
        self,
        name: str,
        store: LowWaterStore,
        claimer: Claimer,
        slots: Slots,
        targets: ScopeTargets,
        runner: Runner,
        metrics: Metrics,
        timings: Callable[[], Timings],
        *,
        lease_seconds: Callable[[str], float],
        on_error: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.name = name
        self.wake = asyncio.Event()
        self._store = store
        self._claimer = claimer
        self._lease_seconds = lease_seconds
        self._slots = slots
        self._targets = targets
        self._runner = runner
        self._metrics = metrics
        self._timings = timings
        self._on_error = on_error
        self._faults = faults
        self._poll_seconds = POLL_SECONDS_MIN
        self._hungry: set[str] = set()  # targets that may have more due than we took
        self._hinted: set[str] = set()  # targets with a hint since the last claim
        self._left_to_others: dict[str, float] = {}  # until when
        self._claimed_at = slots.clock()
        self._poll_at = slots.clock()
        self._marks = LowWaterMarks(slots.clock)
        slots.on_free(self._on_free)

    def work_is_due(self, target: str) -> None:
        """Hint: an intent for this target was enqueued."""
        if target in self._targets.current:
            self._hungry.add(target)
            self._hinted.add(target)
            self.wake.set()

    def lease_is_free(self, lease_name: str) -> None:
        """Ignore the hint: claims need no cluster lease."""

    def look_everywhere(self) -> None:
        """Hint: notifications may have been missed, so any target may have work."""
        for target in self._targets.current:
            self.work_is_due(target)

    def leave_to_others(self, target: str, seconds: float) -> None:
        """Claim nothing of a target for a while: other instances shall have their share."""
        self._left_to_others[target] = self._slots.clock() + seconds

    def is_crowded(self, target: str) -> bool:
        """Say whether a target may have more due than we took, for want of room."""
        if target not in self._hungry:
            return False
        return self._slots.are_busy or self._room(target, self._slots.in_flight(target)) <= 0

    def wanted(self, target: str) -> int:
        """Return how many slots are free for a target of which the last claim found no more."""
        return 0 if target in self._hungry else self._slots.free

    async def step(self) -> Pause:
        """Claim once for each length of lease, and start what was claimed."""
        now = self._slots.clock()
        is_poll = now >= self._poll_at
        if is_poll:
            self._hungry = set(self._targets.current)  # without those that are not served any more
            self._marks.forget_others(self._targets.current)
        rooms = self._rooms()
        if not rooms:
            return Pause(self._seconds_until_room(now))
        if should_gather(
            free=self._slots.free,
            share=self._slots.share,
            seconds_since_taken=now - self._claimed_at,
            latency_seconds=self._runner.times.average_seconds,
        ):
            return Pause(GATHER_SECONDS)
        self._claimed_at = now
        found = 0
        is_look_due = self._marks.is_look_due()
        # Decided before anything is awaited: a full walk of one puts off the next, and a target may
        # move to another scope meanwhile. A full walk needs no look, so an idle instance does not
        # ask which transactions are open.
        is_walk_wanted = is_poll or is_look_due
        claims = [
            (lease_seconds, room, self._marks.is_full_walk_due(room, is_wanted=is_walk_wanted))
            for lease_seconds, room in self._by_lease(rooms).items()
        ]
        if is_look_due and not all(is_full_walk for _, _, is_full_walk in claims):
            seen = self._store.read_open_transactions(self._marks.seen)
            self._marks.look_back(await self._answer(seen))
        for lease_seconds, room, is_full_walk in claims:
            found += await self._claim(room, lease_seconds, is_full_walk=is_full_walk)
        self._adapt_poll(found, is_poll=is_poll)
        return AGAIN if self._hungry else Pause(self._poll_at - self._slots.clock())

    async def _claim(
        self, rooms: Mapping[str, int], lease_seconds: float, *, is_full_walk: bool
    ) -> int:
        # Anew: while this step waited for the database, other scopes may have taken some.
        rooms = {target: room for target in rooms if (room := self._room_to_claim(target)) > 0}
        batch_size = claim_size(
            min(sum(rooms.values()), self._slots.free),
            latency_seconds=self._runner.times.average_seconds,
            lease_seconds=lease_seconds,
        )
        if batch_size == 0:
            return 0
        sent_at = self._slots.clock()
        self._hinted -= rooms.keys()
        with self._slots.reserved(batch_size, rooms):
            due_from = None if is_full_walk else self._marks.due_from(rooms)
            claim = self._claimer.claim(batch_size, lease_seconds, rooms, due_from)
            items, taken = await self._answer(
                while_reaching(FaultPoint.DURING_CLAIM, claim, self._faults)
            )
            if items:
                self._slots.take(items)
                self._runner.start(items)
        claimed = [item.claimed for item in items]
        is_cut = may_be_cut(items)
        self._marks.advance(
            claimed, taken, rooms, batch_size, is_full_walk=is_full_walk, is_cut=is_cut
        )
        is_full = is_cut or sum(taken.values()) >= batch_size
        if is_full_walk:
            # A full batch that is smaller than the number of targets has not looked at all of them.
            walked = rooms if not is_full or batch_size >= len(rooms) else taken
            self._marks.full_walk_ended(walked, sent_at)
        else:
            self._marks.claim_ended(rooms, sent_at)
        for target, room in rooms.items():
            is_satisfied = not is_full and taken.get(target, 0) < room
            # A hint that came during the claim may be about work that the claim did not see.
            if is_satisfied and target not in self._hinted:
                self._hungry.discard(target)
            self._metrics.breaker(target, self._targets.gate(target).breaker.state)
        self._count(claimed)
        return len(claimed)

    async def _answer(self, call: Awaitable[Answer]) -> Answer:
        """Await a call of the database. If it fails, the heartbeat checks our leases at once."""
        try:
            return await call
        except DatabaseUnavailable as error:
            self._on_error(error)
            raise

    def _count(self, claimed: list[Claimed]) -> None:
        for target, seconds in queue_delays(claimed).items():
            self._targets.gate(target).bucket.take(len(seconds))
            self._metrics.claims(target, len(seconds))
            self._metrics.queue_delay(target, *seconds)

    def _rooms(self) -> dict[str, int]:
        """Return how many items each hungry target can take now, without those that take none.

        In random order: whoever comes first may leave nothing to the others. That is so for the
        claims of one step, one for each length of lease, and for the targets of one claim.
        """
        rooms: dict[str, int] = {}
        now = self._slots.clock()
        for target in self._hungry & self._targets.current.keys():
            if self._left_to_others.get(target, now) > now:
                continue
            room = self._room_to_claim(target)
            if room > 0:
                rooms[target] = room
        if rooms and not self._slots.free:
            self._slots.wait_for_one()
            return {}
        count = min(len(rooms), TARGETS_MAX)
        return dict(random.sample(list(rooms.items()), count))

    def _room_to_claim(self, target: str) -> int:
        return self._room(target, self._slots.in_flight_or_claimed(target))

    def _room(self, target: str, in_flight: int) -> int:
        """Return how many items of a target may be added to those in flight, if slots are free."""
        # One slow target must not take all slots: some are reserved for the others.
        reserved = max(1, self._slots.total // 10) if len(self._targets.current) > 1 else 0
        share = max(1, self._slots.total - reserved)
        return min(share - in_flight, self._targets.gate(target).room(in_flight))

    def _by_lease(self, rooms: Mapping[str, int]) -> dict[float, dict[str, int]]:
        by_lease: defaultdict[float, dict[str, int]] = defaultdict(dict)
        for target, room in rooms.items():
            by_lease[self._lease_seconds(target)][target] = room
        return by_lease

    def _adapt_poll(self, found: int, *, is_poll: bool) -> None:
        """Poll more rarely, the longer there was no work."""
        if found:
            self._poll_seconds = POLL_SECONDS_MIN
        elif is_poll:
            self._poll_seconds = min(2 * self._poll_seconds, self._timings().poll_seconds)
        if is_poll:
            self._poll_at = self._slots.clock() + self._poll_seconds

    def _seconds_until_room(self, now: float) -> float:
        """Return how long until time makes room for a hungry target, or the next poll.

        A slot that becomes free wakes the executor by itself.
        """
        waits = [
            self._targets.gate(target).seconds_until_room()
            for target in self._hungry & self._targets.current.keys()
        ]
        until_poll = max(self._poll_at - now, POLL_SECONDS_MIN)
        return min([wait for wait in waits if wait > 0] + [until_poll])

    def _on_free(self, items: Sequence[Item]) -> None:
        del items
        if self._hungry:
            self.wake.set()
