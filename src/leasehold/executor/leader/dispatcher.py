"""The dispatcher takes what is due for the slots that are free, marks it in the database, and hands
it to the runner. While a batch is being called, the next one is marked.

A mark says that a call may be in flight: nobody can cancel it, and a successor puts it in doubt. So
the dispatcher marks only calls that can start now, and removes the mark of a call that was given
back.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.domain.intent import queue_delays
from leasehold.executor.claim_size import GATHER_SECONDS, should_gather, within_bytes
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.coordination.term import Term
    from leasehold.domain.intent import IntentId
    from leasehold.domain.timing import Timings
    from leasehold.executor.item import Item
    from leasehold.executor.leader.due_queue import DueQueue
    from leasehold.executor.runner import Runner
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.leader_protocol import CallMarkStore

# How soon to look again while a renewal is late and nothing may be started.
_RENEWAL_CHECK_SECONDS = 0.05
_IDLE = Pause(60.0)


class Mark:
    """One batch of marked calls: its number in the database, and how many have not ended."""

    __slots__ = ("number", "open_calls")

    def __init__(self, number: int, open_calls: int) -> None:
        self.number = number
        self.open_calls = open_calls


class Marks:
    """The numbers of the marks in the database. A number is used again when its calls have ended:
    the new mark then replaces the old one, so there are never more marks than batches in flight.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def open(self, items: Sequence[Item]) -> Mark:
        """Put items under one mark, with the lowest number that is free."""
        number = next(one for one in itertools.count(1) if one not in self._numbers)
        self._numbers.add(number)
        mark = Mark(number, len(items))
        for item in items:
            item.mark = mark
        return mark

    def end(self, item: Item) -> None:
        """Know that the call of an item has ended, or is not made."""
        mark = item.mark
        if mark is not None:
            item.mark = None
            mark.open_calls -= 1
            if not mark.open_calls:
                self._numbers.discard(mark.number)


class Dispatcher:
    """The service that marks calls and starts them."""

    def __init__(
        self,
        store: CallMarkStore,
        term: Term,
        queue: DueQueue,
        slots: Slots,
        targets: Targets,
        runner: Runner,
        metrics: Metrics,
        timings: Callable[[], Timings],
        *,
        on_error: Callable[[Exception], None],
    ) -> None:
        self.name = f"dispatcher {term.lease.name}"
        self.wake = queue.dispatcher_wake
        self._store = store
        self._term = term
        self._queue = queue
        self._slots = slots
        self._targets = targets
        self._runner = runner
        self._metrics = metrics
        self._timings = timings
        self._on_error = on_error
        self._is_open = False
        self._marks = Marks()
        self._marks_stale = False  # the database has a mark of a call that was given back
        # Calls that may have been made and whose results are not on the ledger. Their marks stay.
        self._unsettled: list[IntentId] = []
        self._marking = asyncio.Lock()  # one change of the marks at a time
        self._taken_at = 0.0
        slots.on_free(self._end)

    def open(self) -> None:
        """Start calls from now on: the due queue is built, and the lease is verified."""
        self._is_open = True
        self.wake.set()

    async def leave(self) -> None:
        """Remove the marks of calls that were not made or are on the ledger, so that a successor
        does not doubt them. Waits for a mark that is being written.
        """
        async with self._marking:
            await self._unmark()

    async def step(self) -> Pause:
        """Start what is due, as far as there is room. Any error makes the leader step down."""
        async with self._marking:
            try:
                return await self._step()
            except Exception as error:  # noqa: BLE001 (whatever it is, the leader steps down)
                self._on_error(error)
                return _IDLE

    async def _step(self) -> Pause:
        if not self._is_open or self._term.is_closing:
            return _IDLE
        if should_gather(
            free=self._slots.free,
            share=self._slots.share,
            seconds_since_taken=self._slots.clock() - self._taken_at,
            latency_seconds=self._runner.times.average_seconds,
        ):
            return Pause(GATHER_SECONDS)
        if self._marks_stale:
            await self._unmark()
        now = self._slots.clock()
        free = self._slots.free
        if free and not self._term.may_start(now):
            return Pause(_RENEWAL_CHECK_SECONDS)
        rooms = self._rooms()
        items = self._queue.take(now, rooms, free)
        if not free:
            return self._wait_for_slot(rooms)
        taken = len(items)
        if items:
            items = self._within_bytes(items, now)
            with self._slots.reserved(len(items), Counter(item.target for item in items)):
                await self._dispatch(items, now)
        if taken == free or len(items) < taken:
            return AGAIN
        return self._pause(
            self._queue.seconds_until_due(self._slots.clock()),
            *map(self._seconds_until_room, self._queue.ready_targets()),
        )

    def _within_bytes(self, items: Sequence[Item], now: float) -> Sequence[Item]:
        """Put back what does not fit into the budget of one mark; it was not marked yet."""
        count = within_bytes(items)
        for item in items[count:]:
            item.leave_unmarked(now)
        self._queue.end(items[count:])
        return items[:count]

    def _wait_for_slot(self, rooms: Mapping[str, int]) -> Pause:
        """Wait for a slot if something could be called in it."""
        if rooms.keys() & self._queue.ready_targets():
            self._slots.wait_for_one()
        return self._pause()

    async def _dispatch(self, items: Sequence[Item], taken_at: float) -> None:
        """Mark items and start their calls; what the mark leaves out waits for the reconcile."""
        self._taken_at = taken_at
        mark = self._marks.open(items)
        marked = await self._store.mark_calls(
            self._term.lease, [item.row for item in items], mark.number
        )
        if marked.left_out:
            left_out = {intent_id.int for intent_id in marked.left_out}
            self._return([item for item in items if item.intent_no in left_out], math.inf)
            items = [item for item in items if item.intent_no not in left_out]
        if not self._term.may_start(self._slots.clock()):
            self._return(items, taken_at)
            return
        lease_seconds = self._timings().cluster_lease_seconds
        for item, claimed in zip(items, marked.calls, strict=True):
            item.work_under(claimed, lease_seconds, taken_at)
        self._slots.take(items)
        self._runner.start(items)
        for target, seconds in queue_delays(marked.calls).items():
            self._targets.gate(target).bucket.take(len(seconds))
            self._metrics.queue_delay(target, *seconds)

    async def _unmark(self) -> None:
        self._marks_stale = False
        keep = [*self._in_flight(), *self._unsettled]
        await self._store.unmark_calls(self._term.lease, keep)

    def _in_flight(self) -> list[IntentId]:
        return [
            item.claimed.intent_id for item in self._slots.all() if item.given_back_until is None
        ]

    def _return(self, items: Sequence[Item], until: float) -> None:
        """Put items that never had a slot back into the queue."""
        for item in items:
            item.leave_unmarked(until)
        self._end(items)

    def _end(self, items: Sequence[Item]) -> None:
        """Take items out of flight: their calls have ended, or are not made."""
        for item in items:
            if item.is_unsettled and item.given_back_until is None:
                self._unsettled.append(item.claimed.intent_id)
            else:
                self._marks.end(item)
            # Infinity: the mark left it out, so there is none.
            self._marks_stale |= item.given_back_until not in (None, math.inf)
        self._queue.end(items)
        self.wake.set()

    def _rooms(self) -> dict[str, int]:
        rooms: dict[str, int] = {}
        for target in self._targets.of_group(self._term.lease.name):
            room = self._targets.gate(target).room(self._slots.in_flight_or_claimed(target))
            if room > 0:
                rooms[target] = room
        return rooms

    def _pause(self, *waits: float) -> Pause:
        """Pause until time makes something possible, but look at new terms of targets meanwhile."""
        return Pause(max(0.001, min((*waits, self._timings().schedule_refresh_seconds))))

    def _seconds_until_room(self, target: str) -> float:
        gate = self._targets.gate(target)
        if gate.room(self._slots.in_flight_or_claimed(target)) > 0:
            return 0.0
        return gate.seconds_until_room() or math.inf  # infinity: a call has to end first
