"""Low-water marks: from which due time on a worker looks for work.

A finished item leaves a dead entry at the head of the due index until a vacuum removes it, and no
vacuum can while any transaction of the database is open. So a claim starts where the last one
ended, and costs what it claims, whatever is dead before that.

Rows may become claimable below a mark: a transaction that enqueued commits late, a claim is given
back, a claimer dies before its commit. Commits that are late by TOLERANCE_SECONDS are found at
once. Everything else is found by a full walk, at every poll and once a second under load. If a full
walk is slow, because a transaction that stays open keeps millions of dead rows, the next one waits
for fifty times its duration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.domain.intent import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasehold.coordination.slots import Clock
    from leasehold.domain.intent import Claimed

TOLERANCE_SECONDS = 0.05
FULL_WALK_SECONDS = 1.0
# A full walk takes at most this share of the time.
FULL_WALK_SHARE = 0.02

_START = datetime.min.replace(tzinfo=UTC)
_TOLERANCE = timedelta(seconds=TOLERANCE_SECONDS)


class LowWaterMarks:
    """The marks of one worker, per target and priority, on the clock of the database."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[str, list[datetime]] = {}
        self._walked_at = clock()
        self._may_walk_at = clock()

    def is_full_walk_due(self, *, is_poll: bool) -> bool:
        """Say whether the next claim should look at all due rows."""
        now = self._clock()
        return now >= self._may_walk_at and (is_poll or now >= self._walked_at + FULL_WALK_SECONDS)

    def full_walk_ended(self, started_at: float) -> None:
        """Remember a full walk, and how long it took."""
        self._walked_at = self._clock()
        self._may_walk_at = self._walked_at + (self._walked_at - started_at) / FULL_WALK_SHARE

    def due_from(self, targets: Iterable[str]) -> list[datetime]:
        """Return where to start: four times for each target, one per priority."""
        start = [_START] * PRIORITIES
        return [mark for target in targets for mark in self._marks.get(target, start)]

    def advance(
        self, claimed: Sequence[Claimed], rooms: Mapping[str, int], batch_size: int
    ) -> None:
        """Move the marks to where a claim ended."""
        if not claimed:
            return  # what the database's clock said is not known
        counts = dict.fromkeys(rooms, 0)
        for item in claimed:
            counts[item.target] += 1
            marks = self._marks.setdefault(item.target, [_START] * PRIORITIES)
            marks[item.priority] = max(marks[item.priority], item.due_at - _TOLERANCE)
        if len(claimed) < batch_size:
            walked_until = claimed[0].claimed_at - _TOLERANCE
            for target, count in counts.items():
                if count < rooms[target]:  # nothing more is due
                    self._marks[target] = [walked_until] * PRIORITIES

    def forget_others(self, targets: Iterable[str]) -> None:
        """Drop the marks of targets that are not served any more."""
        self._marks = {target: self._marks[target] for target in targets if target in self._marks}
