"""What bounds the calls to one target: its concurrency, its rate, and its breaker.

The breaker of a target is closed, and calls go; or open, and none go until the pause is over; or
half open, and one call at a time probes the target. Executors claim and mark only what a gate lets
through, so whatever a target cannot take stays in the database and no other target notices.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, assert_never

from leasehold.domain.outcome import Accepted, Deferred, Rejected, Retryable, Submitted, Unknown
from leasehold.service.backoff import Backoff
from leasehold.service.token_bucket import TokenBucket

if TYPE_CHECKING:
    from leasehold.domain.lease import Clock
    from leasehold.domain.outcome import Outcome
    from leasehold.observe.metrics import BreakerState

FIRST_PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 60.0
# A gateway may request any pause; the breaker probes at least this often.
REQUESTED_PAUSE_SECONDS_MAX = 300.0
# A bucket holds the calls of this time, so that no second sees many more calls than the rate.
BURST_SECONDS = 0.1


class Breaker:
    """Whether a target may be called, judged by its last outcomes."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.requested_seconds_max = REQUESTED_PAUSE_SECONDS_MAX
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, PAUSE_SECONDS_MAX, jitter=(1.0, 1.0))
        self._pause_seconds = 0.0
        self._open_until: float | None = None

    @property
    def state(self) -> BreakerState:
        """The state, in the words of the metrics."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def seconds_until_probe(self) -> float:
        """How long it stays open; 0 if calls may go."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def observe(self, outcome: Outcome) -> None:
        """Learn from the outcome of a call."""
        match outcome:
            case Deferred(is_target_wide=True, retry_after_seconds=float() | int() as requested):
                # It spends no attempt: without a pause, nothing would bound the calls.
                self._open(max(FIRST_PAUSE_SECONDS, requested))
            case Retryable(is_saturated=True) | Deferred(is_target_wide=True):
                self._open(outcome.retry_after_seconds)
            case Accepted() | Rejected() | Submitted() | Retryable() | Deferred():
                if self.state != "open":
                    self.close()
            case Unknown():
                # Nobody answered, which is no sign of capacity: repeat the probe.
                if self.state == "half_open":
                    self._open(None)
            case _:
                assert_never(outcome)

    def _open(self, requested_seconds: float | None) -> None:
        """Pause. Many calls may report one saturation: only a failed probe doubles the pause."""
        if self.state != "open":
            self._pause_seconds = self._backoff.next_seconds()
        seconds = self._pause_seconds
        if requested_seconds is not None:
            seconds = min(requested_seconds, self.requested_seconds_max)
        self._open_until = max(self._open_until or 0.0, self._clock() + seconds)

    def close(self) -> None:
        """Let calls go."""
        self._backoff.reset()
        self._open_until = None


class Gate:
    """Everything that bounds one target in this instance."""

    def __init__(
        self,
        concurrency: int,
        rate_per_second: float | None,
        clock: Clock = time.monotonic,
        *,
        requested_seconds_max: float = REQUESTED_PAUSE_SECONDS_MAX,
    ) -> None:
        self.breaker = Breaker(clock)
        self._clock = clock
        self.adopt(concurrency, rate_per_second, requested_seconds_max)

    def adopt(
        self, concurrency: int, rate_per_second: float | None, requested_seconds_max: float
    ) -> None:
        """Adopt the terms of a newer contract. Whoever publishes one wants it tried: calls go."""
        self.concurrency = concurrency
        capacity = max(1.0, (rate_per_second or 0.0) * BURST_SECONDS)
        self.bucket = TokenBucket(rate_per_second, capacity, self._clock)
        self.breaker.close()
        self.breaker.requested_seconds_max = min(requested_seconds_max, REQUESTED_PAUSE_SECONDS_MAX)

    def room(self, in_flight: int) -> int:
        """Return how many more items of the target can start now."""
        state = self.breaker.state
        if state == "open":
            return 0
        room = (1 if state == "half_open" else self.concurrency) - in_flight
        tokens = self.bucket.available()
        return max(0, room if tokens is None else min(room, tokens))

    def room_to_continue(self) -> float:
        """Return how many of the calls that end may be followed by others; inf means all."""
        if self.breaker.state == "open":
            return 0
        tokens = self.bucket.available()
        return math.inf if tokens is None else max(0, tokens)

    def seconds_until_room(self) -> float:
        """Return how long until time alone makes room; 0 if a call has to end first."""
        return max(self.breaker.seconds_until_probe, self.bucket.seconds_until())
