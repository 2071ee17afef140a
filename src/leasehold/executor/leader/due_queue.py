"""A leader's memory of what is to be done next: a map for what is known, heaps for the order.

It is bounded, and each target has the same share of it, so that a flood for one leaves room for
the others. Where more is pending than fits, the rest stays in the database. While all that is not
here comes after what was read, `running_low` says from where to read on, early enough to do so
beside the work; `lacking` names the targets that must be read from the beginning. Rows may be put
any number of times and in any order: the newest version of each counts, and the same version again
changes nothing.

Time is that of our monotonic clock. A row says in how long it is due by the database's clock, so
our own wall clock does not matter, however wrong it is.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from operator import attrgetter, not_
from typing import TYPE_CHECKING

from leasehold.domain.intent import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
    from datetime import datetime

    from leasehold.domain.intent import IntentId
    from leasehold.store.rows import DueRow, Position

    # What stands first is done first: what is ready in the order of the database's index. The
    # number of its coming makes each place different from all others.
    _Waiting = tuple[float, int, DueRow]  # until when
    _Ready = tuple[int, datetime | None, int, int, DueRow]  # its priority, since when, its id
    _Place = _Waiting | _Ready

# A target of which less than this part of its share is left is read again.
_LOW_WATER = 100
_target, _priority, _due_at = map(attrgetter, ("target", "priority", "due_at"))
_level = attrgetter("target", "priority")


def _by_target(rows: Sequence[DueRow]) -> Iterable[tuple[str, Sequence[DueRow]]]:
    if len(set(map(_target, rows))) == 1:  # as most windows are
        return [(rows[0].target, rows)]
    grouped: defaultdict[str, list[DueRow]] = defaultdict(list)
    for row in rows:
        grouped[row.target].append(row)
    return grouped.items()


class _Queue:
    """What one target has to do: what waits, by when it is due, as a heap; what is due, by priority
    and time, as a list in that order, from which many are taken at once.

    `known` says for all targets at which place each row stands. A place that it does not name is
    of a row that is gone, or stands elsewhere; we notice when we come to it.
    """

    def __init__(self, known: dict[int, _Place], *, has_gaps: bool = True) -> None:
        self.waiting: list[_Waiting] = []
        self.ready: list[_Ready] = []
        self.size = 0
        # The priorities of which the database has more than was read, and how far that was.
        self.read_to: dict[int, Position] = {}
        # Something that is not here comes before something that was read; before what is here.
        self.has_gaps = has_gaps
        self.is_displaced = False
        self._known = known

    def is_gone(self, place: _Place) -> bool:
        return self._known.get(place[-1].intent_id.int) is not place

    def wait(self, until: float, number: int, row: DueRow) -> None:
        place = self._known[row.intent_id.int] = (until, number, row)
        heapq.heappush(self.waiting, place)

    def be_ready(self, number: int, row: DueRow) -> None:
        intent_no = row.intent_id.int
        place = self._known[intent_no] = (row.priority, row.due_at, intent_no, number, row)
        insort(self.ready, place)

    def be_ready_all(self, places: list[_Ready]) -> None:
        self._known.update(zip([place[2] for place in places], places, strict=True))
        self.ready += places
        self.ready.sort()  # two runs that are in order, as a rule: one comparison for each
        self.size += len(places)

    def is_behind(self, row: DueRow, due_at: float) -> bool:
        """Whether something that is here would be done after a row."""
        if any(due_at < place[0] for place in self.waiting[-1:] if not self.is_gone(place)):
            return True
        return any(row.priority < place[0] for place in self.ready[-1:] if not self.is_gone(place))

    def ripen(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            place = heapq.heappop(self.waiting)
            if not self.is_gone(place):
                self.be_ready(*place[1:])

    def first_ready(self) -> _Ready | None:
        gone = next(
            (count for count, place in enumerate(self.ready) if not self.is_gone(place)),
            len(self.ready),
        )
        if gone:
            del self.ready[:gone]
        return self.ready[0] if self.ready else None

    def take(self, most: int) -> list[DueRow]:
        """Take the first so many places, and give the rows that are still there."""
        places, self.ready[:most] = self.ready[:most], []
        known = self._known
        rows: list[DueRow] = []
        for place in places:
            intent_no, row = place[2], place[-1]
            if known.get(intent_no) is place:
                del known[intent_no]
                rows.append(row)
        self.size -= len(rows)
        return rows

    def forget_gone(self) -> None:
        self.waiting = [place for place in self.waiting if not self.is_gone(place)]
        self.ready = [place for place in self.ready if not self.is_gone(place)]
        heapq.heapify(self.waiting)

    def next_at(self) -> float | None:
        while self.waiting and self.is_gone(self.waiting[0]):
            heapq.heappop(self.waiting)
        return self.waiting[0][0] if self.waiting else None


class DueQueue:
    """What the targets of a group have to do."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.share = size_max  # how many rows of one target have room
        # By the numbers of their ids: the hash of a UUID itself is made anew on each look.
        self._known: dict[int, _Place] = {}
        self._queues: dict[str, _Queue] = {}
        self._coming = itertools.count()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, intent_id: IntentId) -> bool:
        return intent_id.int in self._known

    def numbers(self) -> KeysView[int]:
        """Give what is known, by the numbers of the ids."""
        return self._known.keys()

    def serve(self, targets: Collection[str]) -> None:
        """Be about these targets; of one that is new here, nothing is known yet."""
        for target in self._queues.keys() - set(targets):
            self.forget(target)
            del self._queues[target]
        for target in targets:
            if target not in self._queues:
                self._queues[target] = _Queue(self._known)
        self.share = max(1, self.size_max // max(1, len(self._queues)))

    def lacking(self) -> list[str]:
        """Name the targets that should be read from the beginning."""
        low = self.share // _LOW_WATER
        return [
            target
            for target, queue in self._queues.items()
            if queue.is_displaced or (queue.has_gaps and queue.size <= low)
        ]

    @property
    def page(self) -> int:
        """How many rows to read of each target and priority."""
        return max(1, self.share // PRIORITIES)

    def running_low(self) -> dict[str, dict[int, Position]]:
        """Say for the targets of which a page is left which priorities to read on, from where."""
        return {
            target: dict(queue.read_to)
            for target, queue in self._queues.items()
            if queue.read_to and not queue.has_gaps and queue.size <= self.page
        }

    def partial(self) -> set[str]:
        """Name the targets of which the database has more than is here."""
        return {target for target, queue in self._queues.items() if queue.has_gaps or queue.read_to}

    def forget(self, target: str) -> None:
        """Forget what a target has to do, to learn it anew: nothing of it is missing then."""
        queue = self._queues[target]
        for place in itertools.chain(queue.waiting, queue.ready):
            if not queue.is_gone(place):
                del self._known[place[-1].intent_id.int]
        self._queues[target] = _Queue(self._known, has_gaps=False)

    def was_read(self, rows: Sequence[DueRow], limit: int) -> None:
        """Know from where to read on the targets and priorities that had as many as were asked for,
        or more. Their last row is the furthest; were it not, some would be read twice.
        """
        if len(rows) < limit:
            return
        for level, count in Counter(map(_level, rows)).items():
            last = next(row for row in reversed(rows) if _level(row) == level)
            queue = self._queues.get(last.target)
            if count >= limit and queue is not None and last.due_at is not None:
                queue.read_to[last.priority] = (last.due_at, last.intent_id)

    def reads_on(self, target: str) -> None:
        """Know that the rest of a target is being read: `was_read` says what is left of it."""
        self._queues[target].read_to.clear()

    def put(self, row: DueRow, received_at: float) -> None:
        """Learn of a row. What is held, or begun already, is not to be done."""
        known = self._known.get(row.intent_id.int)
        if known is not None:
            if known[-1].last_modified_at >= row.last_modified_at:
                return
            self.drop(row.intent_id)
        if row.wait_seconds is None or row.begun_at is not None:
            return
        # Counted from when the answer was here: late by the way it took, but never early.
        self._add(row, received_at + max(0.0, row.wait_seconds), is_due=row.wait_seconds <= 0)

    def put_all(self, rows: Sequence[DueRow], received_at: float) -> None:
        """Learn of many rows: of those that are new and due at one go."""
        known = self._known
        is_new = [
            row.wait_seconds is not None
            and row.wait_seconds <= 0
            and row.begun_at is None
            and row.intent_id.int not in known
            for row in rows
        ]
        if not all(is_new):
            for row in itertools.compress(rows, map(not_, is_new)):
                self.put(row, received_at)
            rows = list(itertools.compress(rows, is_new))
        for target, due in _by_target(rows):
            queue = self._queues.get(target)
            if queue is not None:
                room = max(0, self.share - queue.size)
                queue.be_ready_all(self._places(due[:room]))
                for row in due[room:]:
                    self.put(row, received_at)

    def _places(self, rows: Sequence[DueRow]) -> list[_Ready]:
        numbers = [row.intent_id.int for row in rows]
        levels, moments = map(_priority, rows), map(_due_at, rows)
        return list(zip(levels, moments, numbers, self._coming, rows, strict=False))

    def put_off(self, row: DueRow, until: float) -> None:
        """Do it later than it says."""
        self.drop(row.intent_id)
        self._add(row, until, is_due=False)

    def drop(self, intent_id: IntentId) -> None:
        """Forget a row."""
        known = self._known.pop(intent_id.int, None)
        if known is not None:
            self._queues[known[-1].target].size -= 1

    def take(self, now: float, rooms: Mapping[str, int], limit: int) -> list[DueRow]:
        """Take what is due: the first by priority and time, as many per target as it has room."""
        for queue in self._queues.values():
            queue.ripen(now)
        rooms = {target: rooms[target] for target in self._queues if rooms.get(target, 0) > 0}
        heads = [
            (first, target)
            for target in rooms
            if (first := self._queues[target].first_ready()) is not None
        ]
        heapq.heapify(heads)
        taken: list[DueRow] = []
        while heads and len(taken) < limit:
            _, target = heapq.heappop(heads)
            most = min(rooms[target], limit - len(taken))
            found = self._take_of(self._queues[target], most, heads[0][0] if heads else None)
            taken += found
            rooms[target] -= len(found)
            if rooms[target] and (first := self._queues[target].first_ready()) is not None:
                heapq.heappush(heads, (first, target))
        return taken

    def _take_of(self, queue: _Queue, most: int, until: _Ready | None) -> list[DueRow]:
        """Take from one target, as long as no other one is before it."""
        taken: list[DueRow] = []
        while len(taken) < most and (first := queue.first_ready()) is not None:
            if taken and until is not None and first > until:
                break
            at_once = most - len(taken)
            if until is not None:
                at_once = min(at_once, max(1, bisect_right(queue.ready, until)))
            taken += queue.take(at_once)
        return taken

    def ready_targets(self) -> list[str]:
        """Name the targets of which something was due when it was last taken from here."""
        return [target for target, queue in self._queues.items() if queue.first_ready() is not None]

    def seconds_until_due(self, now: float) -> float | None:
        """How long until something more is due; None: nothing waits."""
        moments = [at for queue in self._queues.values() if (at := queue.next_at()) is not None]
        return max(0.0, min(moments) - now) if moments else None

    def _add(self, row: DueRow, due_at: float, *, is_due: bool) -> None:
        queue = self._queues.get(row.target)
        if queue is None:
            return  # nobody serves it here; should somebody, it is read from the database
        if queue.size >= self.share:
            queue.has_gaps = True
            queue.is_displaced |= queue.is_behind(row, due_at)
            return
        queue.size += 1
        if is_due:
            queue.be_ready(next(self._coming), row)
        else:
            queue.wait(due_at, next(self._coming), row)
        if len(queue.ready) + len(queue.waiting) > 2 * self.share:  # mostly of rows that are gone
            queue.forget_gone()
