"""The scheduled executor: the one leader of a group does its work from a memory of its own.

It acts in this order and no other: the lease was acquired, the schedule is built from the
database, the lease is verified again, then it begins. From then on it learns of changes by a cursor
over (last_modified_at, intent_id). A row becomes visible when its transaction commits, which may be
after rows with a later stamp; so the cursor never passes the horizon behind which a writer may
still come. Now and then everything is looked at anew, and what the cursor had missed is counted: it
must be 0.

Leadership is checked before anything is taken from the schedule, and again right before each call.
Every error of the database makes it step down.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.coordination.service import AGAIN, Pause
from leasehold.domain.intent import IntentId, queue_delays
from leasehold.executor.backpressure import GATHER_SECONDS, batch_max, should_gather
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.executor.handing_out import HandingOut
from leasehold.executor.schedule import Schedule
from leasehold.executor.window import Window
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from leasehold.coordination.claims import Claims
    from leasehold.coordination.elector import Term
    from leasehold.domain.intent import Claimed
    from leasehold.domain.timing import Timings
    from leasehold.executor.attempt import Attempts
    from leasehold.executor.faults import Faults
    from leasehold.executor.targets import Targets
    from leasehold.executor.window import Read
    from leasehold.observe.metrics import Metrics
    from leasehold.store.answers import Scheduled
    from leasehold.store.protocol import ExecutorStore

    Cursor = tuple[datetime, IntentId]

# Rows that are held in memory; each priority of a target has a quarter of the target's share.
SIZE_MAX = 20_000
# Changes are read in pages; after so many, work goes on before the next.
PAGE = 1_000
PAGES_PER_STEP = 5
RECONCILE_SECONDS = 60.0
# How often it looks for calls that have lasted too long.
ABORT_SECONDS = 0.25
# How long a call that was marked may wait until it is made; longer than it should take by far.
READY_SECONDS_MAX = 1.0
# While a renewal is late and nothing may be begun.
HELD_BACK_SECONDS = 0.05
_FIRST_ID = IntentId(UUID(int=0))
_IDLE = Pause(60.0)
_AT_ONCE = (None, 0.0)

_LOG = get_logger(__name__)


class ScheduledExecutor:
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
        self.attempts: Attempts | None = None
        self._store = store
        self._term = term
        self._claims = claims
        self._targets = targets
        self._metrics = metrics
        self._timings = timings
        self._confirm = confirm
        self._trouble = trouble
        self._faults = faults
        self._schedule = Schedule(SIZE_MAX)
        self._window = Window(store, term, self._schedule, claims.clock, self.wake.set)
        self._is_built = False
        self._cursor: Cursor | None = None
        self._pass: tuple[Cursor, datetime] | None = None  # where a reading of changes has come to
        self._refresh_at = 0.0
        self._is_hinted = False  # that something has changed since we last asked
        self._reconcile_at = 0.0
        self._handed_out_at = 0.0
        self._abort_at = 0.0
        # All of these by the numbers of the ids; see Claims.
        self._taken: dict[int, Scheduled] = {}
        self._changed_in_flight: dict[int, Scheduled] = {}
        # What was not to be done after all, until everything is looked at anew.
        self._lost_sight_of: set[int] = set()
        # What was put off, as which version, until when; the database does not know of it.
        self._not_before: dict[int, tuple[datetime, float]] = {}
        self._handing_out = HandingOut(store, term)
        self._is_falsely_marked = False  # something that was put off, and so is not in flight
        claims.on_free(self.wake.set)

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

    async def leave(self) -> None:
        """Tell the database what is still in flight, so that a successor doubts only that."""
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
        elif now >= self._refresh_at or self._is_hinted or self._pass is not None:
            await self._refresh()
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
        # Whatever is stamped later than this horizon comes with the first refresh.
        self._cursor = (rows[0].horizon, _FIRST_ID) if rows else None
        self._refresh_at = self._claims.clock() + self._timings().schedule_refresh_seconds
        self._reconcile_at = self._claims.clock() + RECONCILE_SECONDS
        await self._faults.reach(FaultPoint.AFTER_REBUILD)
        await self._confirm()
        self._is_built = True
        _LOG.info("schedule_built", lease_name=self._term.lease.name, size=len(self._schedule))

    async def _read_window(self, targets: Sequence[str]) -> Sequence[Scheduled]:
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
        lease = self._term.lease
        self._is_hinted = False
        for _ in range(PAGES_PER_STEP):
            after = self._pass[0] if self._pass else self._cursor
            rows = await self._store.refresh_schedule(lease.holder_id, [lease], after, PAGE)
            received_at = self._claims.clock()
            for row in rows:
                self._learn(row, received_at)
            if rows:
                last = (rows[-1].last_modified_at, rows[-1].intent_id)
                self._pass = (last, self._pass[1] if self._pass else rows[0].horizon)
            if len(rows) < PAGE:
                self._end_pass()
                return
        self.wake.set()

    def _end_pass(self) -> None:
        """Advance the cursor to the last row, but not past the horizon of the first page."""
        if self._pass is not None:
            last, horizon = self._pass
            self._cursor = min(last, (horizon, _FIRST_ID))
            self._pass = None
        self._refresh_at = self._claims.clock() + self._timings().schedule_refresh_seconds

    async def _reconcile(self) -> None:
        """Look at everything anew, and count what a cursor that works would have shown us."""
        self._reconcile_at = self._claims.clock() + RECONCILE_SECONDS
        await self._learn_what_was_read_ahead()  # or what it brings would count as missed
        before, partial = self._known(), self._schedule.partial()
        self._lost_sight_of.clear()
        cursor = self._cursor
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

    def _learn(self, row: Scheduled, received_at: float) -> None:
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
        ended = self._claims.without(self._taken.keys()) - self._handing_out.numbers()
        self._handing_out.end(ended)
        self._is_falsely_marked |= not ended.isdisjoint(self._not_before)
        for number in [one for one, (_, until) in self._not_before.items() if until <= now]:
            del self._not_before[number]
        for number in ended:
            del self._taken[number]
            changed = self._changed_in_flight.pop(number, None)
            if changed is not None:
                self._schedule.put(changed, now)

    async def _start_due(self) -> bool:
        """Start as much as there is room for. Says whether there may be more."""
        now = self._claims.clock()
        free = min(self._claims.free_slots, batch_max(self._claims.slots))
        if not free or self.attempts is None or not self._term.may_start(now):
            return False
        rooms = self._rooms()
        found = self._handing_out.take(rooms, free)
        if not found and not self._term.is_over(now):
            await self._mark_due(now, rooms, free)
            found = self._handing_out.take(rooms, free)
        if not found:
            return False
        lease_seconds = self._timings().cluster_lease_seconds
        taken_at = self._handing_out.asked_at
        self.attempts.start(self._claims.take(found, self._term, lease_seconds, taken_at))
        self._count(found)
        return len(found) == free or len(self._handing_out) > 0

    async def _mark_due(self, now: float, rooms: dict[str, int], most: int) -> None:
        """Get calls ready: as many as can begin now, and those that will within a moment."""
        if not self._handing_out:  # else what is ready waits for a target of its own
            latency_seconds = self.attempts.latency_seconds if self.attempts else 0.0
            ahead = {one: self._targets.gate(one).ahead(latency_seconds) for one in rooms}
            rooms = {target: room + ahead[target] for target, room in rooms.items()}
            most += min(self._claims.slots, sum(ahead.values()))
        rows = self._schedule.take(now, rooms, most)
        if not rows:
            return
        self._handed_out_at = now
        for row in rows:
            self._taken[row.intent_id.int] = row
        try:
            found = await self._handing_out.mark(rows, now)
        except BaseException:
            for row in rows:
                self._taken.pop(row.intent_id.int, None)
            raise
        if len(found) < len(rows):
            self._look_for_the_others(rows, found)

    def _give_back_what_waits(self, now: float) -> None:
        """Let go of the marks of what is ready and did not begin within a moment after all."""
        if self._handing_out and now - self._handing_out.ready_since > READY_SECONDS_MAX:
            for one in self._handing_out.take_all():
                self.put_off(one.intent_id, 0.0)

    def _count(self, found: Sequence[Claimed]) -> None:
        for target, seconds in queue_delays(found).items():
            self._targets.gate(target).bucket.take(len(seconds))
            self._metrics.in_flight(target, self._claims.in_flight(target))
            self._metrics.queue_delay(target, *seconds)

    def _look_for_the_others(self, rows: list[Scheduled], found: set[int]) -> None:
        """Finished or cancelled meanwhile, as a rule. Should one of them not be: look again."""
        others = {row.intent_id.int for row in rows} - found
        self._handing_out.end(others)
        self._lost_sight_of |= others
        for number in others:
            self._taken.pop(number, None)
        self._reconcile_at = min(
            self._reconcile_at, self._claims.clock() + self._timings().schedule_refresh_seconds
        )

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
