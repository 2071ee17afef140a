"""From what is to be done next to what is being called: a leader marks its calls in the database
before it makes them, and those that will begin within a moment together with those that begin now.

What was marked and not made yet is ready here. It counts as in flight to everybody else: nobody can
cancel it, and a successor doubts it. So there is little of it, only of targets that take calls
without a pause (see Gate.ahead), and what did not begin within a second is given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.executor.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from leasehold.coordination.elector import Term
    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.store.answers import Scheduled
    from leasehold.store.protocol import ExecutorStore


class HandingOut:
    """The calls of one term, from their mark until they are made."""

    def __init__(self, store: ExecutorStore, term: Term) -> None:
        # By our monotonic clock: before the last marks, and before the oldest that are ready.
        self.asked_at = 0.0
        self.ready_since = 0.0
        self._store = store
        self._term = term
        self._marks = Marks()
        self._ready: list[Claimed] = []

    def __len__(self) -> int:
        return len(self._ready)

    def numbers(self) -> set[int]:
        """Give what is ready, by the numbers of the ids."""
        return {one.intent_id.int for one in self._ready}

    def end(self, calls: AbstractSet[int]) -> None:
        """Know that these calls have ended, or are not made."""
        self._marks.end(calls)

    async def mark(self, rows: Sequence[Scheduled], asked_at: float) -> set[int]:
        """Have these calls marked, and get the content of those that did not bring it along. Gives
        the numbers of those that are ready now; the others are not to be made.
        """
        self.asked_at = asked_at
        if not self._ready:
            self.ready_since = asked_at
        found = await self._with_content([row.content for row in rows if row.content is not None])
        found += await self._without_content([row.intent_id for row in rows if not row.content])
        self._ready += found
        return {one.intent_id.int for one in found}

    def take(self, rooms: Mapping[str, int], most: int) -> list[Claimed]:
        """Take so many that can begin now: of each target as many as it has room for."""
        left = dict(rooms)
        taken: list[Claimed] = []
        kept: list[Claimed] = []
        for one in self._ready:
            if len(taken) < most and left.get(one.target, 0) > 0:
                left[one.target] -= 1
                taken.append(one)
            else:
                kept.append(one)
        self._ready = kept
        return taken

    def take_all(self) -> list[Claimed]:
        """Take all that is ready, to make none of it after all."""
        taken, self._ready = self._ready, []
        return taken

    async def _with_content(self, content: Sequence[Claimed]) -> list[Claimed]:
        if not content:
            return []
        mark_no = self._marks.begin(one.intent_id.int for one in content)
        marked = await self._store.mark_scheduled_calls(self._term.lease, content, mark_no)
        left_out = set(marked.left_out)
        return [
            one.handed_out(marked.marked_at)
            for one in content
            if not left_out or one.intent_id not in left_out
        ]

    async def _without_content(self, intent_ids: Sequence[IntentId]) -> list[Claimed]:
        if not intent_ids:
            return []
        mark_no = self._marks.begin(one.int for one in intent_ids)
        return await self._store.hand_out_scheduled(self._term.lease, intent_ids, mark_no)
