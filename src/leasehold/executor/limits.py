"""How much a target can take now: its free slots, its rate, and whether it said that it is full.

A breaker per target: closed, calls go; open, none go until the pause is over; then half open, one
call at a time goes to see. Claims are shaped by this, so what a target cannot take stays in the
database, and the other targets never notice.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, assert_never

from leasehold.domain.outcome import Accepted, Rejected, Retryable, Submitted, Unknown
from leasehold.service.token_bucket import TokenBucket

if TYPE_CHECKING:
    from leasehold.coordination.claims import Claims, Clock
    from leasehold.domain.outcome import Outcome
    from leasehold.observe.metrics import BreakerState

FIRST_PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 60.0
# A gateway may ask for any time; we look again at least this often.
RETRY_AFTER_SECONDS_MAX = 300.0
# How long slots are waited for, one by one as they come free.
GATHER_SECONDS = 0.003
# What will begin within this time may be got ready together with what begins now.
AHEAD_SECONDS = 0.05
# A bucket holds this much of a second's calls, so that a second never sees many more than its rate.
BURST_SECONDS = 0.1


def batch_max(slots: int) -> int:
    """Say how much to take at once at most: a third of the slots, so that one batch can be taken
    while another is being called and a third is being written.
    """
    return math.ceil(slots / 3)


def claim_size(room: int, *, slots: int, latency_seconds: float, lease_seconds: float) -> int:
    """Say how many items to claim at once for the room that there is.

    A batch at most, and no more than could be called one after the other inside the lease, if it
    came to that.
    """
    size = min(room, batch_max(slots))
    if latency_seconds > 0:
        size = min(size, max(1, int(lease_seconds / latency_seconds)))
    return size


def should_gather(claims: Claims, taken_at: float) -> bool:
    """Say whether to wait a moment for more slots before taking work again: with less than a
    quarter of them free, so soon after the last time.
    """
    is_soon = claims.clock() - taken_at < GATHER_SECONDS
    return is_soon and claims.free_slots * 4 < claims.slots


class Breaker:
    """Whether a target may be called, by what it last said."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pauses = 0
        self._opens_at: float | None = None

    @property
    def state(self) -> BreakerState:
        """The state, in the words of the metrics."""
        if self._opens_at is None:
            return "closed"
        return "open" if self._clock() < self._opens_at else "half_open"

    @property
    def seconds_until_probe(self) -> float:
        """How long it stays open; 0 when calls may go."""
        return 0.0 if self._opens_at is None else max(0.0, self._opens_at - self._clock())

    def saw(self, outcome: Outcome) -> None:
        """Learn from a call's outcome."""
        match outcome:
            case Retryable(is_saturated=True):
                self._pause(outcome.retry_after_seconds)
            case Accepted() | Rejected() | Submitted() | Retryable():
                if self.state != "open":
                    self._close()
            case Unknown():
                # Nobody answered: no sign of capacity, so a probe has to be repeated.
                if self.state == "half_open":
                    self._pause(None)
            case _:
                assert_never(outcome)

    def _pause(self, asked_seconds: float | None) -> None:
        """Open. Many calls may report one saturation: only a failed probe makes pauses longer."""
        if self.state != "open":
            self._pauses += 1
        ours = min(PAUSE_SECONDS_MAX, FIRST_PAUSE_SECONDS * 2 ** min(self._pauses - 1, 10))
        seconds = ours if asked_seconds is None else min(asked_seconds, RETRY_AFTER_SECONDS_MAX)
        self._opens_at = max(self._opens_at or 0.0, self._clock() + seconds)

    def _close(self) -> None:
        self._pauses = 0
        self._opens_at = None


class Gate:
    """All that bounds one target in this instance."""

    def __init__(
        self, concurrency: int, rate_per_second: float | None, clock: Clock = time.monotonic
    ) -> None:
        self.concurrency = concurrency
        self.breaker = Breaker(clock)
        capacity = max(1.0, (rate_per_second or 0.0) * BURST_SECONDS)
        self.bucket = TokenBucket(rate_per_second, capacity, clock)

    def room(self, in_flight: int) -> int:
        """How many more items of the target can start now."""
        state = self.breaker.state
        if state == "open":
            return 0
        room = (1 if state == "half_open" else self.concurrency) - in_flight
        tokens = self.bucket.available()
        return max(0, room if tokens is None else min(room, tokens))

    def ahead(self, latency_seconds: float) -> int:
        """How many more calls will begin within a moment, where calls last for so long; none where
        that is not known yet, or a rate or a probe decides when the next one begins.
        """
        is_free = self.breaker.state == "closed" and self.bucket.available() is None
        if not is_free or latency_seconds <= 0:
            return 0
        return int(self.concurrency * min(1.0, AHEAD_SECONDS / latency_seconds))

    def seconds_until_room(self) -> float:
        """How long until time alone could make room; 0: something else has to happen first."""
        return max(self.breaker.seconds_until_probe, self.bucket.seconds_until())
