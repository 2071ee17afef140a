"""Exponential backoff with jitter."""

from __future__ import annotations

import random

# 2 ** 20 times the first pause is longer than any maximum.
_DOUBLINGS_MAX = 20


class Backoff:
    """The pause after each failure in a row: doubled each time, up to a maximum.

    Each pause is multiplied by a random factor between the two bounds of `jitter`, so that
    instances that failed together do not retry together.
    """

    def __init__(
        self, first_seconds: float, seconds_max: float, jitter: tuple[float, float] = (0.5, 1.0)
    ) -> None:
        self.failures = 0
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._jitter = jitter

    def next_seconds(self, seconds_max: float | None = None) -> float:
        """Count a failure and return the pause that follows it.

        `seconds_max` replaces the maximum for this pause, for one that changes at runtime.
        """
        doubled = self._first_seconds * 2 ** min(self.failures, _DOUBLINGS_MAX)
        self.failures += 1
        seconds = min(doubled, self._seconds_max if seconds_max is None else seconds_max)
        return seconds * random.uniform(*self._jitter)  # noqa: S311 (not used for security)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.failures = 0
