"""Low-water marks: from which due time on a worker looks for work.

A finished item leaves a dead entry at the head of the due index until a vacuum removes it, and no
vacuum can while any transaction of the database is open. So a claim starts where the last one
ended, and costs what it claims, whatever is dead before that.

Rows may become claimable below a mark: a transaction that enqueued commits late, a caller gives a
due time in the past, a claim is given back, a claimer dies before its commit. Commits that are late
by TOLERANCE_SECONDS are found at once. Everything else is found by a full walk, at every poll and
once a second under load. Each target counts for itself: one that has no room at a poll has its full
walk when it has. If a full walk finds more below a mark than can start now, the mark goes back.

If a full walk is slow, because a transaction that stays open keeps millions of dead rows, the next
one waits for fifty times its duration, but no longer than half a minute: a database that stalled
once must not hide work for long. A million dead rows take 0.1 seconds, so it waits five.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.domain.intent import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from leasehold.coordination.slots import Clock
    from leasehold.domain.intent import Claimed

TOLERANCE_SECONDS = 0.05
FULL_WALK_SECONDS = 1.0
# A full walk takes at most this share of the time, unless it would come more rarely than this.
FULL_WALK_SHARE = 0.02
FULL_WALK_PAUSE_SECONDS_MAX = 30.0

_START = datetime.min.replace(tzinfo=UTC)
_TOLERANCE = timedelta(seconds=TOLERANCE_SECONDS)


class LowWaterMarks:
    """The marks of one worker, per target and priority, on the clock of the database."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[str, list[datetime]] = {}
        self._walked_at: dict[str, float] = {}
        self._may_walk_at = clock()

    def is_full_walk_due(self, targets: Iterable[str], *, is_poll: bool) -> bool:
        """Say whether the next claim for these targets should look at all their due rows."""
        now = self._clock()
        if now < self._may_walk_at:
            return False
        due_if_walked_at = now - FULL_WALK_SECONDS
        walked_at = self._walked_at
        return is_poll or any(walked_at.get(one, -math.inf) <= due_if_walked_at for one in targets)

    def full_walk_ended(self, targets: Iterable[str], started_at: float) -> None:
        """Remember a full walk of these targets, and how long it took."""
        now = self._clock()
        self._walked_at.update(dict.fromkeys(targets, now))
        pause_seconds = (now - started_at) / FULL_WALK_SHARE
        self._may_walk_at = min(
            max(now, self._may_walk_at) + pause_seconds, now + FULL_WALK_PAUSE_SECONDS_MAX
        )

    def due_from(self, targets: Iterable[str]) -> list[datetime]:
        """Return where to start: four times for each target, one per priority."""
        start = [_START] * PRIORITIES
        return [mark for target in targets for mark in self._marks.get(target, start)]

    def advance(
        self,
        claimed: Sequence[Claimed],
        rooms: Mapping[str, int],
        batch_size: int,
        *,
        is_full_walk: bool,
    ) -> None:
        """Move the marks to where a claim ended; after a full walk that may be further back."""
        if not claimed:
            return  # what the database's clock said is not known
        counts = dict.fromkeys(rooms, 0)
        last_due_at: dict[tuple[str, int], datetime] = {}
        for item in claimed:
            counts[item.target] += 1
            line = item.target, item.priority
            last_due_at[line] = max(last_due_at.get(line, _START), item.due_at)
        for (target, priority), due_at in last_due_at.items():
            marks = self._marks.setdefault(target, [_START] * PRIORITIES)
            mark = due_at - _TOLERANCE
            marks[priority] = mark if is_full_walk else max(marks[priority], mark)
        is_full = len(claimed) >= batch_size
        # Of a full batch, each target could have had this many at least.
        share = batch_size // len(rooms) if is_full else batch_size
        walked_until = claimed[0].claimed_at - _TOLERANCE
        for target, count in counts.items():
            if count < min(rooms[target], share):  # nothing more is due
                self._marks[target] = [walked_until] * PRIORITIES

    def forget_others(self, targets: Collection[str]) -> None:
        """Drop the marks of targets that are not served any more."""
        self._marks = {target: self._marks[target] for target in targets if target in self._marks}
        self._walked_at = {
            target: self._walked_at[target] for target in targets if target in self._walked_at
        }
