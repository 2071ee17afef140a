"""How fast finished intents may be tried anew: a mistake of an operator's is not to be a flood."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from leasehold.web.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

BURST = 1000
PER_SECOND = 20.0


class RedriveRate:
    """A bucket of intents, of this instance: full at first, and filled again bit by bit."""

    def __init__(
        self,
        burst: int = BURST,
        per_second: float = PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self, intents: int) -> None:
        """Take so many, or refuse and say when there will be enough."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if intents > self._left:
            seconds = math.ceil((intents - self._left) / self._per_second)
            raise Problem(
                "too_many",
                f"{intents} intents are more than may be tried anew now: at most {self._burst} at "
                f"once and {self._per_second:g} a second, at each instance",
                retry_seconds=seconds,
            )
        self._left -= intents
