"""From what is to be done next to what is being called: a leader marks its calls in the database
before it makes them, and those that will begin within a moment together with those that begin now.
They are marked beside the work: while one batch is being called, the next one is got ready.

What was marked and not made yet is ready here. It counts as in flight to everybody else: nobody can
cancel it, and a successor doubts it. So there is little of it, only of targets that take calls
without a pause (see Gate.ahead), and what did not begin within a second is given back.
"""

from __future__ import annotations

from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from leasehold.executor.leader.beside import Beside
from leasehold.executor.leader.marks import Marks
from leasehold.store.rows import handed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from leasehold.coordination.term import Term
    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import DueRow

_target = attrgetter("target")


class Batch(NamedTuple):
    """Calls that were marked together, and a moment right before that by our monotonic clock."""

    asked_at: float
    calls: list[Claimed]


class Dispatcher:
    """The calls of one term, from their mark until they are made."""

    def __init__(self, store: ExecutorStore, term: Term, told: Callable[[], None]) -> None:
        self._store = store
        self._term = term
        self._marks = Marks()
        self._marking: Beside[set[int]] = Beside(told)
        self._being_marked: Sequence[DueRow] = ()
        self._ready: deque[Batch] = deque()

    def __len__(self) -> int:
        return sum(len(batch.calls) for batch in self._ready)

    def by_target(self) -> Counter[str]:
        """Count what is ready, or soon will be, by target."""
        found = Counter(map(_target, self._being_marked))
        for batch in self._ready:
            found.update(map(_target, batch.calls))
        return found

    def numbers(self) -> set[int]:
        """Give the same, by the numbers of the ids."""
        ready = {one.intent_id.int for batch in self._ready for one in batch.calls}
        return ready | {row.intent_id.int for row in self._being_marked}

    def has_waited_since(self, moment: float) -> bool:
        """Whether something is ready since before a moment."""
        return bool(self._ready) and self._ready[0].asked_at < moment

    def end(self, calls: AbstractSet[int]) -> None:
        """Know that these calls have ended, or are not made."""
        self._marks.end(calls)

    @property
    def is_marking(self) -> bool:
        """Whether calls are being marked; then no others can be."""
        return self._marking.is_begun

    @property
    def is_marked(self) -> bool:
        """Whether they are marked, and nobody has asked yet what came of it."""
        return self._marking.is_done

    def mark(self, rows: Sequence[DueRow], asked_at: float) -> None:
        """Begin to have these calls marked; `told` says when they are."""
        self._being_marked = rows
        self._marking.begin(self._mark(rows, asked_at))

    async def marked(self) -> set[int]:
        """Wait until they are marked, and ready. Gives the numbers of those that are not to be made
        after all. Raises what came of the mark, LeaseLost among others.
        """
        return await self._marking.result() or set()

    def take(self, rooms: Mapping[str, int], most: int) -> Batch | None:
        """Take so many that can begin now, of those that were marked first: of each target as many
        as it has room for.
        """
        for batch in self._ready:
            taken, kept = _divided(batch.calls, rooms, most)
            if taken:
                batch.calls[:] = kept
                if not kept:
                    self._ready.remove(batch)
                return Batch(batch.asked_at, taken)
        return None

    def take_all(self) -> list[Claimed]:
        """Take all that is ready, to make none of it after all."""
        taken = [one for batch in self._ready for one in batch.calls]
        self._ready.clear()
        return taken

    async def _mark(self, rows: Sequence[DueRow], asked_at: float) -> set[int]:
        """Mark them, and get the content of those that did not bring it along."""
        bare = [row.intent_id for row in rows if not row.has_content]
        whole = [row for row in rows if row.has_content] if bare else rows
        try:
            calls, left_out = await self._with_content(whole) if whole else ([], set[int]())
            if bare:
                more, not_found = await self._without_content(bare)
                calls, left_out = calls + more, left_out | not_found
        finally:
            self._being_marked = ()
        if calls:
            self._ready.append(Batch(asked_at, calls))
        return left_out

    async def _with_content(self, rows: Sequence[DueRow]) -> tuple[list[Claimed], set[int]]:
        mark_no = self._marks.begin([row.intent_id.int for row in rows])
        marked = await self._store.mark_scheduled_calls(self._term.lease, rows, mark_no)
        left_out = {intent_id.int for intent_id in marked.left_out}
        if left_out:
            rows = [row for row in rows if row.intent_id.int not in left_out]
        return handed_out(rows, marked.marked_at), left_out

    async def _without_content(
        self, intent_ids: Sequence[IntentId]
    ) -> tuple[list[Claimed], set[int]]:
        numbers = {one.int for one in intent_ids}
        mark_no = self._marks.begin(numbers)
        found = await self._store.hand_out_scheduled(self._term.lease, intent_ids, mark_no)
        return found, numbers - {one.intent_id.int for one in found}


def _divided(
    calls: list[Claimed], rooms: Mapping[str, int], most: int
) -> tuple[list[Claimed], list[Claimed]]:
    """Say which of these can begin now, and which cannot."""
    if len(set(map(_target, calls))) == 1:
        count = min(most, rooms.get(calls[0].target, 0))
        return calls[:count], calls[count:]
    left = dict(rooms)
    taken: list[Claimed] = []
    kept: list[Claimed] = []
    for one in calls:
        if len(taken) < most and left.get(one.target, 0) > 0:
            left[one.target] -= 1
            taken.append(one)
        else:
            kept.append(one)
    return taken, kept
