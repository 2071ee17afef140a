"""A leader's memory of what is to be done next: a map for what is known, heaps for the order.

It is bounded. Where more is pending than fits, the rest stays in the database and comes in when
there is room again; `is_partial` says so. Rows may be put any number of times and in any order: the
newest version of each counts, and the same version again changes nothing.

Time is that of our monotonic clock. A row says when it is due by the database's clock and what that
clock said when it was read, so our own wall clock does not matter, however wrong it is.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from leasehold.domain.intent import IntentId
    from leasehold.store.answers import Scheduled


@dataclass(slots=True, eq=False)
class _Entry:
    row: Scheduled
    is_gone: bool = False


class Schedule:
    """What waits, by when it is due; and what is due, by target, priority and time."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.is_partial = False
        # Something was left out that goes before what is here.
        self.is_displaced = False
        self._entries: dict[IntentId, _Entry] = {}
        # The number of its coming makes each place in a heap different from all others.
        self._waiting: list[tuple[float, int, _Entry]] = []
        self._ready: dict[str, list[tuple[int, datetime | None, int, _Entry]]] = {}
        self._coming = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, intent_id: object) -> bool:
        return intent_id in self._entries

    def __iter__(self) -> Iterator[IntentId]:
        return iter(self._entries)

    def put(self, row: Scheduled, received_at: float) -> None:
        """Learn of a row. What is held, or begun already, is not to be done."""
        known = self._entries.get(row.intent_id)
        if known is not None and known.row.last_modified_at >= row.last_modified_at:
            return
        self.drop(row.intent_id)
        if row.due_at is None or row.begun_at is not None:
            return
        # Counted from when the answer was here: late by the way it took, but never early.
        self._add(row, received_at + (row.due_at - row.read_at).total_seconds())

    def put_off(self, row: Scheduled, until: float) -> None:
        """Do it later than it says."""
        self.drop(row.intent_id)
        self._add(row, until)

    def drop(self, intent_id: IntentId) -> None:
        """Forget a row."""
        known = self._entries.pop(intent_id, None)
        if known is not None:
            known.is_gone = True  # the heaps notice when they come to it

    def take(self, now: float, rooms: Mapping[str, int], limit: int) -> list[Scheduled]:
        """Take what is due: the first by priority and time, as many per target as it has room."""
        self._ripen(now)
        rooms = dict(rooms)
        heads = [
            (ready[0][:2], target)
            for target in rooms
            if rooms[target] and (ready := self._of(target))
        ]
        heapq.heapify(heads)
        taken: list[Scheduled] = []
        while heads and len(taken) < limit:
            _, target = heapq.heappop(heads)
            *_, entry = heapq.heappop(self._ready[target])
            del self._entries[entry.row.intent_id]
            taken.append(entry.row)
            rooms[target] -= 1
            if rooms[target] and (ready := self._of(target)):
                heapq.heappush(heads, (ready[0][:2], target))
        return taken

    def seconds_until_due(self, now: float) -> float | None:
        """How long until something more is due; None: nothing waits."""
        while self._waiting and self._waiting[0][-1].is_gone:
            heapq.heappop(self._waiting)
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._waiting.clear()
        self._ready.clear()
        self.is_partial = self.is_displaced = False

    def _add(self, row: Scheduled, due_at: float) -> None:
        if len(self._entries) >= self.size_max:
            self.is_partial = True
            self.is_displaced |= self._goes_first(row, due_at)
            return
        entry = self._entries[row.intent_id] = _Entry(row)
        heapq.heappush(self._waiting, (due_at, next(self._coming), entry))
        if len(self._waiting) > 2 * self.size_max:  # mostly of rows that are gone
            self._waiting = [one for one in self._waiting if not one[-1].is_gone]
            heapq.heapify(self._waiting)

    def _goes_first(self, row: Scheduled, due_at: float) -> bool:
        """Whether it would be done before something that is here."""
        if any(
            due_at < waiting_at for waiting_at, _, entry in self._waiting[-1:] if not entry.is_gone
        ):
            return True
        return any(
            row.priority < priority
            for ready in self._ready.values()
            for priority, _, _, entry in ready[-1:]
            if not entry.is_gone
        )

    def _ripen(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, number, entry = heapq.heappop(self._waiting)
            if not entry.is_gone:
                ready = self._ready.setdefault(entry.row.target, [])
                heapq.heappush(ready, (entry.row.priority, entry.row.due_at, number, entry))

    def _of(self, target: str) -> list[tuple[int, datetime | None, int, _Entry]]:
        """Give what is ready for a target, with a row at its head that is not gone."""
        ready = self._ready.get(target, [])
        while ready and ready[0][-1].is_gone:
            heapq.heappop(ready)
        return ready
