"""The due queue: what a leader knows of its work, in one map of items and one order per target.

The queue is bounded, and each target has the same share of it, so that a flood for one target
leaves room for the others. What does not fit stays in the database: `running_low` names the targets
to read on from where the last read ended, `lacking` those to read from the beginning.

Rows may be learnt any number of times and in any order: the newest version of each counts.

Time is our `trust_clock`. A row says in how many seconds it is due by the database's clock, so
our own wall clock may be wrong.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import Counter, defaultdict
from contextlib import contextmanager
from operator import attrgetter, not_
from typing import TYPE_CHECKING

from leasehold.domain.intent import PRIORITIES
from leasehold.domain.outcome import Accepted, Rejected
from leasehold.executor.item import DONE, READY, WAITING, Item, ItemState
from leasehold.executor.leader.target_queue import TargetQueue

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from leasehold.coordination.term import Trust
    from leasehold.executor.fences import Fence
    from leasehold.store.rows import DueRow, Position

# A target with gaps is read again when no more than this fraction of its share is left.
_LOW_FRACTION = 1 / 100
_target, _priority, _due_at = map(attrgetter, ("target", "priority", "due_at"))
_level = attrgetter("target", "priority")


class DueQueue:
    """The items of one term. It wakes the reader when it runs low, the dispatcher when it fills."""

    def __init__(self, size_max: int, fence: Fence, trust: Trust) -> None:
        self.share = size_max  # how many items of one target may wait or be ready
        self.reader_wake = asyncio.Event()
        self.dispatcher_wake = asyncio.Event()
        self._size_max = size_max
        self._fence = fence
        self._trust = trust
        self._items: dict[int, Item] = {}
        self._queues: dict[str, TargetQueue] = {}
        self._arrivals = itertools.count()
        self._is_being_read = False
        self._ended: list[Item] = []  # during the current read

    def __len__(self) -> int:
        """Count the items that wait or are ready."""
        return sum(queue.size for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """How many items are neither waiting nor ready."""
        return len(self._items) - len(self)

    def find(self, intent_no: int) -> Item | None:
        """Return the item of an intent, whatever its state."""
        return self._items.get(intent_no)

    def known(self) -> set[int]:
        """Return the numbers of all intents in memory, whatever their state."""
        return set(self._items)

    def serve(self, targets: Collection[str]) -> None:
        """Serve these targets from now on. One that is new is `lacking`."""
        for target in self._queues.keys() - set(targets):
            self._drop(self._queues[target].items())
            del self._queues[target]
        for target in targets:
            if target not in self._queues:
                self._queues[target] = TargetQueue()
        self.share = max(1, self._size_max // max(1, len(self._queues)))

    @property
    def page(self) -> int:
        """How many rows to read of each target and priority."""
        return max(1, self.share // PRIORITIES)

    def lacking(self) -> list[str]:
        """Name the targets to read from the beginning."""
        low = int(self.share * _LOW_FRACTION)
        return [
            target
            for target, queue in self._queues.items()
            if queue.is_displaced or (queue.has_gaps and queue.size <= low)
        ]

    def running_low(self) -> dict[str, dict[int, Position]]:
        """Name the targets with no more than a page left, and where to read on per priority."""
        return {
            target: dict(queue.read_to)
            for target, queue in self._queues.items()
            if queue.read_to and not queue.has_gaps and queue.size <= self.page
        }

    def beginning(self, targets: Iterable[str]) -> dict[str, dict[int, Position]]:
        """Return where the rows of targets begin: what was due before is finished."""
        return {target: self._queues[target].beginning() for target in targets}

    def partial(self) -> set[str]:
        """Name the targets of which the database has more than is here."""
        return {target for target, queue in self._queues.items() if queue.has_gaps or queue.read_to}

    @property
    def has_left_out(self) -> bool:
        """Whether a mark left something out that has not been read again."""
        return any(queue.has_left_out for queue in self._queues.values())

    @contextmanager
    def reading(self) -> Generator[None]:
        """Remember what ends during a read: the read may bring the row as it was before."""
        self._is_being_read = True
        try:
            yield
        finally:
            self._is_being_read = False
            ended, self._ended = self._ended, []
            for item in ended:
                if self._items.get(item.intent_no) is item:
                    del self._items[item.intent_no]

    def learn(self, row: DueRow, received_at: float) -> None:
        """Learn a row, unless a version at least as new is known."""
        if (queue := self._queues.get(row.target)) is not None:
            queue.lower_marks([row])
        item = self._items.get(row.intent_id.int)
        if item is not None:
            if row.version <= item.row.version:
                if row.has_content and row.version == item.row.version:
                    item.row = row
                return
            if READY < item.state < DONE:  # it is in flight: `end` uses the newest version
                if item.newer is None or row.version > item.newer[0].version:
                    item.newer = (row, received_at)
                return
            if item.state is not DONE:
                self._drop([item])
        self._add_if_callable(row, received_at)

    def learn_page(self, rows: Sequence[DueRow], received_at: float, limit: int) -> None:
        """Learn rows that were read by due time, up to `limit` of each target and priority."""
        known = self._items
        is_new = [
            row.wait_seconds is not None
            and row.wait_seconds <= 0
            and row.begun_at is None
            and row.intent_id.int not in known
            for row in rows
        ]
        new = rows
        if not all(is_new):
            for row in itertools.compress(rows, map(not_, is_new)):
                self.learn(row, received_at)
            new = list(itertools.compress(rows, is_new))
        for target, due in _by_target(new):
            queue = self._queues.get(target)
            if queue is not None:
                room = max(0, self.share - queue.size)
                self._add_ready(queue, due[:room])
                for row in due[room:]:
                    self.learn(row, received_at)
        self._note_where_to_read_on(rows, limit)

    def relearn(
        self, targets: Iterable[str], rows: Sequence[DueRow], received_at: float, limit: int
    ) -> None:
        """Learn targets that were read from the beginning, and drop what was not found.

        What is known in the same version stays as it is, with its delay if it was given back.
        """
        found = {row.intent_id.int for row in rows}
        for target in targets:
            queue = self._queues[target]
            self._drop(queue.left_out())
            self._drop([item for item in queue.items() if item.intent_no not in found])
            queue.forget_stale()
            queue.has_gaps = queue.is_displaced = queue.has_left_out = False
            queue.read_to.clear()
            queue.reset_marks()
        for target, of_target in _by_target(rows):
            self._queues[target].lower_marks(of_target)
        self.learn_page(rows, received_at, limit)

    def read_on(self, targets: Iterable[str]) -> None:
        """Know that the rest of these targets is being read; `learn_page` says what is left."""
        for target in targets:
            self._queues[target].read_to.clear()

    def take(self, now: float, rooms: Mapping[str, int], limit: int) -> list[Item]:
        """Take what is due, by priority and due time, as many of each target as it has room for.

        The items become MARKED; the caller marks them in the database.
        """
        for queue in self._queues.values():
            queue.ripen(now, self._arrivals)
        left = {target: rooms[target] for target in self._queues if rooms.get(target, 0) > 0}
        heads = [
            (first, target)
            for target in left
            if (first := self._queues[target].first_ready()) is not None
        ]
        heapq.heapify(heads)
        taken: list[Item] = []
        while heads and len(taken) < limit:
            _, target = heapq.heappop(heads)
            most = min(left[target], limit - len(taken))
            found = self._queues[target].take_until(heads[0][0] if heads else None, most)
            taken += found
            left[target] -= len(found)
            if left[target] and (first := self._queues[target].first_ready()) is not None:
                heapq.heappush(heads, (first, target))
        self._wake_reader_if_low()
        return taken

    def end(self, items: Iterable[Item]) -> None:
        """Take items out of flight: finished, given back, or left out by the mark."""
        for item in items:
            if self._requeue(item):
                continue
            if self._is_being_read:
                self._ended.append(item)
            else:
                del self._items[item.intent_no]
        self._wake_reader_if_low()

    def ready_targets(self) -> list[str]:
        """Name the targets of which something was due at the last `take`."""
        return [target for target, queue in self._queues.items() if queue.first_ready() is not None]

    def seconds_until_due(self, now: float) -> float:
        """Return how long until something more is due; infinity if nothing waits."""
        next_at = min((queue.next_at() for queue in self._queues.values()), default=math.inf)
        return max(0.0, next_at - now)

    def _wake_reader_if_low(self) -> None:
        if self.lacking() or self.running_low():
            self.reader_wake.set()

    def _drop(self, items: Iterable[Item]) -> None:
        for item in items:
            item.end()
            del self._items[item.intent_no]
            self._queues[item.target].size -= 1

    def _requeue(self, item: Item) -> bool:
        """Make a new item of a row that has to be called again. Returns whether it is known now.

        The newest version of the row decides if it changed in flight; else the time until which
        the item was given back.
        """
        if isinstance(item.outcome, (Accepted, Rejected)):
            return False
        if item.newer is not None:
            item.row = item.newer[0]
            return self._add_if_callable(*item.newer)
        return item.given_back_until is not None and self._put_off(item.row, item.given_back_until)

    def _put_off(self, row: DueRow, until: float) -> bool:
        """Keep a row that was given back. If its target is full, the last ready item makes room."""
        queue = self._queues.get(row.target)
        if queue is not None:
            if queue.size >= self.share and (last := queue.last_ready()) is not None:
                queue.has_gaps = True
                self._drop([last])
            if math.isinf(until):
                queue.has_left_out = True
                self.reader_wake.set()
        return self._add(row, until, is_due=False)

    def _add_if_callable(self, row: DueRow, received_at: float) -> bool:
        """Add a row, unless it is held or its call has begun."""
        if row.wait_seconds is None or row.begun_at is not None:
            return False
        # Counted from the arrival of the answer: late by the time of its way, but never early.
        until = received_at + max(0.0, row.wait_seconds)
        return self._add(row, until, is_due=row.wait_seconds <= 0)

    def _add(self, row: DueRow, until: float, *, is_due: bool) -> bool:
        queue = self._queues.get(row.target)
        if queue is None:
            return False  # nobody serves the target here; when somebody does, it is read
        if queue.size >= self.share:
            queue.has_gaps = True
            queue.is_displaced |= queue.is_behind(row, until)
            return False
        item = self._items[row.intent_id.int] = self._item(row, READY if is_due else WAITING)
        if is_due:
            queue.insert_ready(item, next(self._arrivals))
        else:
            heapq.heappush(queue.waiting, (until, next(self._arrivals), item))
        queue.size += 1
        self.dispatcher_wake.set()
        if len(queue.ready) + len(queue.waiting) > 2 * self.share:  # most of the places are stale
            queue.forget_stale()
        return True

    def _add_ready(self, queue: TargetQueue, rows: Sequence[DueRow]) -> None:
        """Add many rows that are new and due at once."""
        items = [self._item(row, READY) for row in rows]
        numbers = [item.intent_no for item in items]
        self._items.update(zip(numbers, items, strict=True))
        queue.ready += zip(
            map(_priority, rows), map(_due_at, rows), numbers, self._arrivals, items, strict=False
        )
        queue.ready.sort()  # two sorted runs, as a rule: one comparison for each
        queue.size += len(items)
        self.dispatcher_wake.set()

    def _item(self, row: DueRow, state: ItemState) -> Item:
        item = Item(row.intent_id.int, row.target, self._fence, self._trust, state)
        item.row = row
        return item

    def _note_where_to_read_on(self, rows: Sequence[DueRow], limit: int) -> None:
        """Note the last row of each target and priority that had as many rows as were asked for.

        The last row is the furthest. If it were not, some rows would be read twice.
        """
        if len(rows) < limit:
            return
        for level, count in Counter(map(_level, rows)).items():
            last = next(row for row in reversed(rows) if _level(row) == level)
            queue = self._queues.get(last.target)
            if count >= limit and queue is not None and last.due_at is not None:
                queue.read_to[last.priority] = (last.due_at, last.intent_id)


def _by_target(rows: Sequence[DueRow]) -> Iterable[tuple[str, Sequence[DueRow]]]:
    if len(set(map(_target, rows))) == 1:  # as in most pages
        return [(rows[0].target, rows)]
    grouped: defaultdict[str, list[DueRow]] = defaultdict(list)
    for row in rows:
        grouped[row.target].append(row)
    return grouped.items()
