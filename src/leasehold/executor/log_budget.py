"""Log lines that may be many at once: some hundred are written, then a few each second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leasehold.service.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.observe.logs import BoundLogger

LINES_MAX = 500
LINES_PER_SECOND = 10.0


class LogBudget:
    """Warns of one kind of event. A line says how many were left out before it (`not_logged`)."""

    def __init__(
        self,
        logger: BoundLogger,
        event: str,
        *,
        lines_max: int = LINES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._event = event
        self._bucket = TokenBucket(LINES_PER_SECOND, lines_max, clock)
        self._left_out = 0

    def warn(self, **fields: object) -> None:
        """Log one event, unless there were too many."""
        if self._bucket.seconds_until() > 0:
            self._left_out += 1
            return
        self._bucket.take(1)
        if self._left_out:
            fields["not_logged"], self._left_out = self._left_out, 0
        self._logger.warning(self._event, **fields)
