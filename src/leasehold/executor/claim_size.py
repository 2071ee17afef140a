"""How many items an executor takes at a time, and whether it first waits for more free slots."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.executor.item import Item
    from leasehold.observe.metrics import Metrics

# How long an executor waits for further slots when only a few are free.
GATHER_SECONDS = 0.003
# The contents that one statement hands out; the default of p_bytes_max. At 10 MB/s, a slow network,
# that takes less than a second. Seven of the largest intents fit.
CLAIM_BYTES_MAX = 8 * 1024 * 1024
# The most that one intent has: 1 MiB of payload or body, and metadata.
_INTENT_BYTES_MAX = 1024 * 1024 + 16 * 1024
_LATENCY_WEIGHT = 0.05  # of the newest call, in the moving average


def claim_size(room: int, *, latency_seconds: float, lease_seconds: float) -> int:
    """Return how many items to claim: as many as can start, but no more than could be called one
    after the other within the lease, if it came to that.
    """
    if latency_seconds > 0:
        return min(room, max(1, int(lease_seconds / latency_seconds)))
    return room


def should_gather(
    *, free: int, share: int, seconds_since_taken: float, latency_seconds: float
) -> bool:
    """Say whether to wait for more free slots: less than a quarter of our share are free, items
    were taken a moment ago, and calls are so short that a quarter of them ends within the wait. A
    statement for each slot would then cost more than the wait; with longer calls slots would only
    stand idle.
    """
    return (
        seconds_since_taken < GATHER_SECONDS
        and free * 4 < share
        and latency_seconds <= 4 * GATHER_SECONDS
    )


def may_be_cut(items: Iterable[Item]) -> bool:
    """Say whether a claim may have left something out because of its budget of bytes."""
    claimed = sum(one.claimed.content_bytes for item in items for one in (item, *item.followers))
    return claimed > CLAIM_BYTES_MAX - _INTENT_BYTES_MAX


def within_bytes(items: Sequence[Item]) -> int:
    """Return how many of these items of a leader one mark may read the content of, at least one."""
    left = CLAIM_BYTES_MAX
    for number, item in enumerate(items):
        left -= 0 if item.row.has_content else item.row.content_bytes
        if left < 0:
            return max(1, number)
    return len(items)


class CallTimes:
    """How long calls take: on average, for the size of claims, and each of them for the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self.average_seconds = 0.0
        self._metrics = metrics
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, target: str, seconds: float) -> None:
        """Count a call. All that end in one pass of the event loop are reported at once."""
        self.average_seconds += _LATENCY_WEIGHT * (seconds - self.average_seconds)
        if not self._seconds:
            asyncio.get_running_loop().call_soon(self._report)
        self._seconds[target].append(seconds)

    def _report(self) -> None:
        for target, seconds in self._seconds.items():
            self._metrics.call(target, *seconds)
        self._seconds.clear()
