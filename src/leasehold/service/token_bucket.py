"""A token bucket: the one rate limiter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """Holds up to `capacity` tokens and earns `rate_per_second`; None as the rate means no limit.

    It starts full. `take` does not refuse: callers ask `available` or `seconds_until` first, or
    take more than there is and go into debt.
    """

    def __init__(
        self,
        rate_per_second: float | None,
        capacity: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate_per_second
        self._capacity = capacity
        self._clock = clock
        self._tokens = capacity
        self._filled_at = clock()

    def available(self) -> int | None:
        """Return how many whole tokens there are now; None means no limit."""
        if self._rate is None:
            return None
        now = self._clock()
        earned = (now - self._filled_at) * self._rate
        self._tokens = min(self._capacity, self._tokens + earned)
        self._filled_at = now
        return int(self._tokens)

    def seconds_until(self, tokens: int = 1) -> float:
        """Return the time until there are so many tokens; 0 if they are there now."""
        if self._rate is None or (self.available() or 0) >= tokens:
            return 0.0
        return (tokens - self._tokens) / self._rate

    def take(self, tokens: int) -> None:
        """Use up tokens."""
        self._tokens -= tokens
