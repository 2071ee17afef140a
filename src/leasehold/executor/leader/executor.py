"""The scheduled executor: the one leader of a group does its work from a memory of its own.

It acts in this order and no other: the lease was acquired, the schedule is built from the
database, the lease is verified again, then it begins. From then on it learns of changes by a cursor
(see `changes`). Now and then everything is looked at anew, and what the cursor had missed is
counted: it must be 0.

Leadership is checked before anything is taken from the schedule, and again right before each call.
Every error of the database makes it step down.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError
from leasehold.domain.intent import queue_delays
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.executor.leader.changes import Changes
from leasehold.executor.leader.dispatcher import Dispatcher
from leasehold.executor.leader.due_queue import DueQueue
from leasehold.executor.leader.reader import Window
from leasehold.executor.limits import GATHER_SECONDS, batch_max, should_gather
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

    from leasehold.coordination.claims import Claims
    from leasehold.coordination.term import Term
    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.leader.reader import Read
    from leasehold.executor.runner import Runner
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import DueRow

# Rows that are held in memory; each priority of a target has a quarter of the target's share.
SIZE_MAX = 20_000
RECONCILE_SECONDS = 60.0
# How often it looks for calls that have lasted too long.
ABORT_SECONDS = 0.25
# How long a call that was marked may wait until it is made; longer than it should take by far.
READY_SECONDS_MAX = 1.0
# While a renewal is late and nothing may be begun.
HELD_BACK_SECONDS = 0.05
_IDLE = Pause(60.0)
_AT_ONCE = (None, 0.0)

_LOG = get_logger(__name__)


class LeaderExecutor:
    """The service of one term."""

    def __init__(
        self,
        store: ExecutorStore,
        term: Term,
        claims: Claims,
        targets: Targets,
        metrics: Metrics,
        timings: Callable[[], Timings],
        *,
        confirm: Callable[[], Awaitable[None]],
        trouble: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.name = f"scheduled {term.lease.name}"
        self.wake = asyncio.Event()
        self.attempts: Runner | None = None
        self._store = store
        self._term = term
        self._claims = claims
        self._targets = targets
        self._metrics = metrics
        self._timings = timings
        self._confirm = confirm
        self._trouble = trouble
        self._faults = faults
        self._schedule = DueQueue(SIZE_MAX)
        self._window = Window(store, term, self._schedule, claims.clock, self.wake.set)
        self._is_built = False
        self._changes = Changes(store, term)
        self._refresh_at = 0.0
        self._is_hinted = False  # that something has changed since we last asked
        self._reconcile_at = 0.0
        self._handed_out_at = 0.0
        self._abort_at = 0.0
        # All of these by the numbers of the ids; see Claims.
        self._taken: dict[int, DueRow] = {}
        self._changed_in_flight: dict[int, DueRow] = {}
        self._ended: set[int] = set()  # of what was taken, and not forgotten yet
        # What was not to be done after all, until everything is looked at anew.
        self._lost_sight_of: set[int] = set()
        # What was put off, as which version, until when; the database does not know of it.
        self._not_before: dict[int, tuple[datetime, float]] = {}
        self._handing_out = Dispatcher(store, term, self.wake.set)
        self._is_falsely_marked = False  # something that was put off, and so is not in flight
        claims.on_free(self._slots_are_free)

    def hint(self) -> None:
        """Take the hint that something has changed."""
        self._is_hinted = True
        self.wake.set()

    def put_off(self, intent_id: IntentId, delay_seconds: float) -> None:
        """Come back to an intent later, with nothing on the ledger."""
        row = self._taken.get(intent_id.int)
        if row is not None:
            until = self._claims.clock() + delay_seconds
            self._not_before[intent_id.int] = (row.last_modified_at, until)
            self._schedule.put_off(row, until)
            self.wake.set()

    def _slots_are_free(self, numbers: Iterable[int]) -> None:
        self._ended.update(numbers)
        self.wake.set()

    async def leave(self) -> None:
        """Tell the database what is still in flight, so that a successor doubts only that."""
        with suppress(LeaseholdError):  # whatever became of it
            await self._handing_out.marked()  # or it would be marked afterwards
        await self._keep_marks_of([held.claimed.intent_id for held in self._claims.all()])

    async def _keep_marks_of(self, in_flight: Sequence[IntentId]) -> None:
        self._is_falsely_marked = False
        await self._store.keep_scheduled_calls(self._term.lease, in_flight)

    async def step(self) -> Pause:
        """Learn what changed, and start what is due."""
        try:
            return await self._step()
        except Exception as error:  # noqa: BLE001 - whatever it was, who cannot step must not lead
            self._trouble(error)
            return _IDLE

    async def _step(self) -> Pause:
        now = self._claims.clock()
        self._abort_overdue(now)
        if self._term.is_closing or self._term.is_over(now):
            return _IDLE
        self._schedule.serve(self._targets.of_group(self._term.lease.name))
        if not self._is_built:
            await self._build()
        elif now >= self._refresh_at or self._is_hinted or self._changes.is_reading:
            await self._refresh()
        if self._handing_out.is_marked:
            await self._learn_what_was_marked()
        self._give_back_what_waits(now)
        self._forget_finished()
        await self._look_anew_if_needed()
        if should_gather(self._claims, self._handed_out_at):
            return Pause(GATHER_SECONDS)
        if self._is_falsely_marked:
            await self._keep_marks_of([row.intent_id for row in self._taken.values()])
        is_more = await self._start_due()
        self._metrics.schedule(self._term.lease.name, len(self._schedule))
        return AGAIN if is_more else Pause(self._seconds_until_next())

    def _abort_overdue(self, now: float) -> None:
        if now < self._abort_at:
            return
        self._abort_at = now + ABORT_SECONDS
        for held in self._claims.overdue():
            if self.attempts is not None:
                self.attempts.abort(held)

    async def _look_anew_if_needed(self) -> None:
        """Every now and then; when what we have runs out; when something urgent was left out."""
        if self._window.is_read_ahead:
            await self._learn_what_was_read_ahead()
        if self._claims.clock() >= self._reconcile_at:
            await self._reconcile()
        elif lacking := self._schedule.lacking():
            await self._read_window(lacking)
        else:
            self._window.read_ahead()

    async def _build(self) -> None:
        rows = await self._read_window(self._targets.of_group(self._term.lease.name))
        if rows:
            self._changes.begin_at(rows[0].horizon)
        self._refresh_at = self._claims.clock() + self._timings().schedule_refresh_seconds
        self._reconcile_at = self._claims.clock() + RECONCILE_SECONDS
        await self._faults.reach(FaultPoint.AFTER_REBUILD)
        await self._confirm()
        self._is_built = True
        _LOG.info("schedule_built", lease_name=self._term.lease.name, size=len(self._schedule))

    async def _read_window(self, targets: Sequence[str]) -> Sequence[DueRow]:
        """Read what is to be done next, in place of what we had."""
        await self._learn_what_was_read_ahead()
        if not targets:
            return []
        read = await self._window.read(targets, len(self._taken))
        for target in targets:
            self._schedule.forget(target)
        self._learn_all(read)
        return read.rows

    async def _learn_what_was_read_ahead(self) -> None:
        read = await self._window.ahead()
        if read is not None:
            self._learn_all(read)

    async def _refresh(self) -> None:
        """Read the changes after the cursor, some pages at a time."""
        self._is_hinted = False
        async for page in self._changes.pages():
            received_at = self._claims.clock()
            for row in page:
                self._learn(row, received_at)
        if self._changes.is_reading:
            self.wake.set()
        else:
            self._refresh_at = self._claims.clock() + self._timings().schedule_refresh_seconds

    async def _reconcile(self) -> None:
        """Look at everything anew, and count what a cursor that works would have shown us."""
        self._reconcile_at = self._claims.clock() + RECONCILE_SECONDS
        await self._learn_what_was_read_ahead()  # or what it brings would count as missed
        # We were told of all that has ended; should we not have been, it would be held for good.
        self._ended |= self._claims.without(self._taken.keys()) - self._handing_out.numbers()
        self._forget_finished()
        before, partial = self._known(), self._schedule.partial()
        self._lost_sight_of.clear()
        cursor = self._changes.cursor
        rows = await self._read_window(self._targets.of_group(self._term.lease.name))
        missed = [
            row
            for row in rows
            if row.target not in partial
            and row.intent_id in self._schedule
            and row.intent_id.int not in before
            and cursor is not None
            and (row.last_modified_at, row.intent_id) <= cursor
        ]
        if missed:
            _LOG.error(
                "cursor_missed_changes",
                lease_name=self._term.lease.name,
                missed=len(missed),
                first=str(missed[0].intent_id),
            )
            self._metrics.schedule(self._term.lease.name, len(self._schedule), len(missed))

    def _known(self) -> set[int]:
        return {*self._schedule.numbers(), *self._taken, *self._lost_sight_of}

    def _learn_all(self, read: Read) -> None:
        """Learn of a window, most of which is new to us."""
        numbers = {row.intent_id.int for row in read.rows}
        not_new = numbers & (self._taken.keys() | self._not_before.keys())
        rows = read.rows
        if not_new:
            rows = [row for row in rows if row.intent_id.int not in not_new]
            for row in read.rows:
                if row.intent_id.int in not_new:
                    self._learn(row, read.received_at)
        self._schedule.put_all(rows, read.received_at)
        self._schedule.was_read(read.rows, read.limit)

    def _learn(self, row: DueRow, received_at: float) -> None:
        number = row.intent_id.int
        taken = self._taken.get(number)
        if taken is not None:
            if row.last_modified_at > taken.last_modified_at:
                self._changed_in_flight[number] = row  # for when it has ended
            return
        version, until = self._not_before.get(number, _AT_ONCE)
        if version == row.last_modified_at and until > received_at:
            self._schedule.put_off(row, until)
        else:
            self._schedule.put(row, received_at)

    def _forget_finished(self) -> None:
        now = self._claims.clock()
        ended, self._ended = self._ended, set()
        self._is_falsely_marked |= not ended.isdisjoint(self._not_before)
        for number in [one for one, (_, until) in self._not_before.items() if until <= now]:
            del self._not_before[number]
        self._handing_out.end(ended)
        for number in ended:
            self._taken.pop(number, None)
        for number in ended & self._changed_in_flight.keys():
            self._schedule.put(self._changed_in_flight.pop(number), now)

    async def _start_due(self) -> bool:
        """Start as much as there is room for. Says whether there may be more."""
        now = self._claims.clock()
        free = min(self._claims.free_slots, batch_max(self._claims.slots))
        if not free or self.attempts is None or not self._term.may_start(now):
            return False
        rooms = self._rooms()
        batch = self._handing_out.take(rooms, free)
        if batch is None:
            self._mark_due(now, rooms, free)
            await self._learn_what_was_marked()
            if not self._term.may_start(self._claims.clock()):
                return False  # it stays ready, so that whoever leaves unmarks it
            batch = self._handing_out.take(rooms, free)
        if batch is None:
            return False
        lease_seconds = self._timings().cluster_lease_seconds
        held = self._claims.take(batch.calls, self._term, lease_seconds, batch.asked_at)
        self.attempts.start(held)
        self._count(batch.calls)
        if len(self._handing_out) < batch_max(self._claims.slots):
            self._mark_due(now, rooms, free - len(held))
        return len(held) == free or len(self._handing_out) > 0

    def _mark_due(self, now: float, targets: Iterable[str], most: int) -> None:
        """Begin to get calls ready of targets that could take some: as many as can begin now, and
        those that will in a moment.
        """
        if self._handing_out.is_marking or not self._term.may_start(self._claims.clock()):
            return
        latency_seconds = self.attempts.latency_seconds if self.attempts else 0.0
        ready, rooms, ahead = self._handing_out.by_target(), dict[str, int](), 0
        for target in targets:
            gate = self._targets.gate(target)
            soon = gate.ahead(latency_seconds)
            rooms[target] = gate.room(self._claims.in_flight(target)) + soon - ready[target]
            ahead += max(0, soon - ready[target])
        # What was given back meanwhile is to be done again: what it was before is over first.
        self._forget_finished()
        ahead = min(ahead, max(0, self._claims.slots - len(self._handing_out)))
        rows = self._schedule.take(now, rooms, most + ahead)
        if rows:
            self._handed_out_at = now
            self._taken.update((row.intent_id.int, row) for row in rows)
            self._handing_out.mark(rows, now)

    async def _learn_what_was_marked(self) -> None:
        """Finished or cancelled meanwhile, as a rule, is what was not. Should one not be: look."""
        left_out = await self._handing_out.marked()
        if not left_out:
            return
        self._handing_out.end(left_out)
        self._lost_sight_of |= left_out
        for number in left_out:
            self._taken.pop(number, None)
        self._reconcile_at = min(
            self._reconcile_at, self._claims.clock() + self._timings().schedule_refresh_seconds
        )

    def _give_back_what_waits(self, now: float) -> None:
        """Let go of the marks of what is ready and did not begin within a moment after all."""
        if self._handing_out.has_waited_since(now - READY_SECONDS_MAX):
            for one in self._handing_out.take_all():
                self.put_off(one.intent_id, 0.0)
                self._ended.add(one.intent_id.int)

    def _count(self, found: Sequence[Claimed]) -> None:
        for target, seconds in queue_delays(found).items():
            self._targets.gate(target).bucket.take(len(seconds))
            self._metrics.in_flight(target, self._claims.in_flight(target))
            self._metrics.queue_delay(target, *seconds)

    def _rooms(self) -> dict[str, int]:
        rooms: dict[str, int] = {}
        for target in self._targets.of_group(self._term.lease.name):
            room = self._targets.gate(target).room(self._claims.in_flight(target))
            if room > 0:
                rooms[target] = room
        return rooms

    def _seconds_until_next(self) -> float:
        now = self._claims.clock()
        waits = [0.0 if self._is_hinted else self._refresh_at - now, self._reconcile_at - now]
        due = self._schedule.seconds_until_due(now)
        if not self._term.may_start(now):
            waits.append(HELD_BACK_SECONDS)
        elif self._claims.free_slots:  # else a slot that comes free wakes us
            waits += [due] if due is not None else []
            waits += map(self._seconds_until_room, self._schedule.ready_targets())
        return max(0.001, min(waits))

    def _seconds_until_room(self, target: str) -> float:
        """Until time lets a target have another call; never, where one of its calls must end."""
        gate = self._targets.gate(target)
        if gate.room(self._claims.in_flight(target)) > 0:
            return 0.0
        return gate.seconds_until_room() or math.inf
