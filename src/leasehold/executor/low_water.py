"""Low-water marks: from which due time on a worker looks for work.

A finished item leaves a dead entry at the head of the due index until a vacuum removes it, and no
vacuum can while any transaction of the database is open. So a claim starts where the last one
ended, and costs what it claims, whatever is dead before that.

Nothing becomes claimable with a due time in the past, but a row becomes visible only when its
transaction is committed, and a claim skips rows that somebody has locked. So a worker looks back
once a second: it asks which transactions are open, and moves its marks back to where they were at
the last look, or to when a transaction began that has ended since. That costs what was finished
since then, not what is dead. If it takes long, because long transactions end all the time, the next
look waits for ten times its duration, but no longer than five seconds.

Full walks find everything else: what a transaction had locked for long and left as it was, and
claims that expired. They come at every poll, in place of a look (they need none), and once a second
under load; but if one is slow,
because a transaction that stays open keeps millions of dead rows, the next one waits for fifty
times its duration, but no longer than half a minute. Each target counts for itself: one that has no
room at a poll has its full walk when it has. If a full walk finds more below a mark than can start
now, the mark goes back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.domain.intent import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from leasehold.domain.intent import Claimed
    from leasehold.domain.lease import Clock
    from leasehold.store.executor_protocol import OpenTransactions

# Commits that are late by so much are found without a look.
TOLERANCE_SECONDS = 0.05
LOOK_SECONDS = 1.0
FULL_WALK_SECONDS = 1.0
# Looking back and full walks take at most these shares of the time. But the pause after one is
# never longer than these seconds.
LOOK_SHARE = 0.1
LOOK_PAUSE_SECONDS_MAX = 5.0
FULL_WALK_SHARE = 0.02
FULL_WALK_PAUSE_SECONDS_MAX = 30.0

_START = datetime.min.replace(tzinfo=UTC)
_TOLERANCE = timedelta(seconds=TOLERANCE_SECONDS)


class _Share:
    """Bounds the share of the time that something takes, by a pause after it of limited length."""

    def __init__(self, clock: Clock, share: float, pause_seconds_max: float) -> None:
        self._clock = clock
        self._share = share
        self._pause_seconds_max = pause_seconds_max
        self._free_at = clock()

    def is_free(self) -> bool:
        return self._clock() >= self._free_at

    def took(self, started_at: float) -> None:
        now = self._clock()
        pause_seconds = (now - started_at) / self._share
        self._free_at = min(max(now, self._free_at) + pause_seconds, now + self._pause_seconds_max)


class LowWaterMarks:
    """The marks of one worker, per target and priority, on the clock of the database."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[str, list[datetime]] = {}
        self._walked_at: dict[str, float] = {}
        self._walks = _Share(clock, FULL_WALK_SHARE, FULL_WALK_PAUSE_SECONDS_MAX)
        self._looks = _Share(clock, LOOK_SHARE, LOOK_PAUSE_SECONDS_MAX)
        self._look_at = clock()
        self._went_back: set[str] = set()  # targets with no claim since their marks went back
        self.seen: OpenTransactions | None = None  # at the last look
        self._marks_then: dict[str, list[datetime]] = {}

    def is_look_due(self) -> bool:
        """Say whether to ask for the open transactions and look back before the next claim."""
        return self._clock() >= self._look_at and self._looks.is_free()

    def look_back(self, seen: OpenTransactions) -> None:
        """Move the marks back to where rows may have become visible since the last look."""
        self._look_at = self._clock() + LOOK_SECONDS
        lowest = _START if seen.since is None else seen.since - _TOLERANCE
        start = [_START] * PRIORITIES
        marks_now = self._marks
        self._marks = {
            target: [
                min(mark, then, lowest)
                for mark, then in zip(marks, self._marks_then.get(target, start), strict=True)
            ]
            for target, marks in marks_now.items()
        }
        self._went_back = set(marks_now)
        self._marks_then = marks_now
        self.seen = seen

    def is_full_walk_due(self, targets: Iterable[str], *, is_wanted: bool) -> bool:
        """Say whether the next claim for these targets should look at all their due rows: because
        it is wanted, or because the last one was long ago, unless they take too much of the time.
        """
        if not self._walks.is_free():
            return False
        due_if_walked_at = self._clock() - FULL_WALK_SECONDS
        walked_at = self._walked_at
        return is_wanted or any(
            walked_at.get(one, -math.inf) <= due_if_walked_at for one in targets
        )

    def full_walk_ended(self, targets: Iterable[str], started_at: float) -> None:
        """Remember a full walk of these targets, and how long it took."""
        self._walked_at.update(dict.fromkeys(targets, self._clock()))
        self._walks.took(started_at)

    def claim_ended(self, targets: Collection[str], started_at: float) -> None:
        """Remember how long a claim of these targets took, if it had to go back."""
        if not self._went_back.isdisjoint(targets):
            self._went_back.difference_update(targets)
            self._looks.took(started_at)

    def due_from(self, targets: Iterable[str]) -> list[datetime]:
        """Return where to start: four times for each target, one per priority."""
        start = [_START] * PRIORITIES
        return [mark for target in targets for mark in self._marks.get(target, start)]

    def advance(
        self,
        claimed: Sequence[Claimed],
        taken: Mapping[str, int],
        rooms: Mapping[str, int],
        batch_size: int,
        *,
        is_full_walk: bool,
        is_cut: bool = False,
    ) -> None:
        """Move the marks to where a claim ended, or back to what a full walk found below them.

        `claimed` are the items to start; `taken` counts all items or streams that were taken. A
        claim that was cut may have left something out, of any target, because of its size.
        """
        due: defaultdict[tuple[str, int], list[datetime]] = defaultdict(list)
        for item in claimed:
            due[item.target, item.priority].append(item.due_at)
        for (target, priority), due_at in due.items():
            marks = self._marks.setdefault(target, [_START] * PRIORITIES)
            # The heads of expired streams are in no order, so a full walk does not say how far.
            move, mark = (min, min(due_at)) if is_full_walk else (max, max(due_at))
            marks[priority] = move(marks[priority], mark - _TOLERANCE)
        # A target that got less than this, although it had room, has nothing more due. A full batch
        # gives each target its share at least; in a full walk, expired streams may have used it.
        is_full = sum(taken.values()) >= batch_size
        share = batch_size if not is_full else 0 if is_full_walk else batch_size // len(rooms)
        if is_cut:
            share = 0
        # A full walk may have taken long since it read the clock.
        looked_at = _START if self.seen is None else self.seen.seen_at
        walked_until = claimed[0].claimed_at if claimed and not is_full_walk else looked_at
        for target, room in rooms.items():
            if taken.get(target, 0) < min(room, share) and walked_until > _START:
                # Nothing more is due.
                self._marks[target] = [walked_until - _TOLERANCE] * PRIORITIES

    def forget_others(self, targets: Collection[str]) -> None:
        """Drop the marks of targets that are not served any more."""
        self._marks = {target: self._marks[target] for target in targets if target in self._marks}
        self._marks_then = {
            target: self._marks_then[target] for target in targets if target in self._marks_then
        }
        self._walked_at = {
            target: self._walked_at[target] for target in targets if target in self._walked_at
        }
