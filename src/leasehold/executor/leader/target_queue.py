"""The order of one target's items in the due queue."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.domain.intent import PRIORITIES, IntentId
from leasehold.executor.item import READY, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leasehold.executor.item import Item
    from leasehold.store.rows import DueRow, Position

    # The arrival number makes every place different, so that items are never compared.
    WaitingPlace = tuple[float, int, Item]  # until when, arrival
    ReadyPlace = tuple[int, datetime | None, int, int, Item]  # priority, since when, id, arrival


_START = datetime.min.replace(tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)
_FIRST_ID = IntentId(UUID(int=0))


class TargetQueue:
    """The order of one target: a heap of what waits, a sorted list of what is ready.

    A place whose item has moved on to another state is stale, and is skipped when it is met.
    """

    def __init__(self) -> None:
        self.waiting: list[WaitingPlace] = []
        self.ready: list[ReadyPlace] = []
        self.size = 0
        # How far each priority was read of which the database has more.
        self.read_to: dict[int, Position] = {}
        # The low-water mark of each priority: the last read from the beginning found nothing before
        # it, and nothing that was learned since is due before it.
        self.due_from = [_START] * PRIORITIES
        # Something that is not here comes before something that was read; before what is here.
        self.has_gaps = True
        self.is_displaced = False
        self.has_left_out = False  # a mark left something out that was not read again

    def lower_marks(self, rows: Iterable[DueRow]) -> None:
        """Lower the marks to what was learned."""
        for row in rows:
            if row.due_at is not None and row.due_at < self.due_from[row.priority]:
                self.due_from[row.priority] = row.due_at

    def reset_marks(self) -> None:
        """Raise the marks: what a read from the beginning has found will lower them."""
        self.due_from = [_END] * PRIORITIES

    def beginning(self) -> dict[int, Position]:
        """Return where the rows of each priority begin."""
        return {priority: (due_at, _FIRST_ID) for priority, due_at in enumerate(self.due_from)}

    def is_behind(self, row: DueRow, until: float) -> bool:
        """Say whether something here would be called after a row."""
        if any(until < place[0] for place in self.waiting[-1:] if place[-1].state is WAITING):
            return True
        return any(row.priority < place[0] for place in self.ready[-1:] if place[-1].state is READY)

    def ripen(self, now: float, arrivals: Iterator[int]) -> None:
        """Move what has become due from waiting to ready."""
        while self.waiting and self.waiting[0][0] <= now:
            item = heapq.heappop(self.waiting)[-1]
            if item.state is WAITING:
                item.become_due()
                self.insert_ready(item, next(arrivals))

    def insert_ready(self, item: Item, arrival: int) -> None:
        """Give a READY item its place."""
        row = item.row
        insort(self.ready, (row.priority, row.due_at, item.intent_no, arrival, item))

    def first_ready(self) -> ReadyPlace | None:
        """Return the first place that is not stale."""
        stale = next(
            (count for count, place in enumerate(self.ready) if place[-1].state is READY),
            len(self.ready),
        )
        if stale:
            del self.ready[:stale]
        return self.ready[0] if self.ready else None

    def last_ready(self) -> Item | None:
        """Return the item that would be called last."""
        return next((place[-1] for place in reversed(self.ready) if place[-1].state is READY), None)

    def take_until(self, until: ReadyPlace | None, items_max: int) -> list[Item]:
        """Take items up to the place of another target, but at least one."""
        taken: list[Item] = []
        while len(taken) < items_max and (first := self.first_ready()) is not None:
            if taken and until is not None and first > until:
                break
            places_max = items_max - len(taken)
            if until is not None:
                places_max = min(places_max, max(1, bisect_right(self.ready, until)))
            taken += self._take(places_max)
        return taken

    def items(self) -> list[Item]:
        """Return all items that wait or are ready."""
        waiting = [place[-1] for place in self.waiting if place[-1].state is WAITING]
        return waiting + [place[-1] for place in self.ready if place[-1].state is READY]

    def left_out(self) -> list[Item]:
        """Return the items that wait until the next read from the beginning."""
        return [
            item for until, _, item in self.waiting if math.isinf(until) and item.state is WAITING
        ]

    def forget_stale(self) -> None:
        """Remove the stale places."""
        self.waiting = [place for place in self.waiting if place[-1].state is WAITING]
        self.ready = [place for place in self.ready if place[-1].state is READY]
        heapq.heapify(self.waiting)

    def next_at(self) -> float:
        """Return when the next item is due; infinity if none waits."""
        while self.waiting and self.waiting[0][-1].state is not WAITING:
            heapq.heappop(self.waiting)
        return self.waiting[0][0] if self.waiting else math.inf

    def _take(self, places_max: int) -> list[Item]:
        """Take the first places, and return the items that are still there."""
        places, self.ready[:places_max] = self.ready[:places_max], []
        items = [place[-1] for place in places if place[-1].state is READY]
        for item in items:
            item.take()
        self.size -= len(items)
        return items
