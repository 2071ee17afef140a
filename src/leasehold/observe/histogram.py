"""A fast histogram.

Each call is observed by three histograms, and the histogram of prometheus_client takes two locks
per value and searches its buckets linearly. This one takes no lock: only the thread of the event
loop writes. A scrape in another thread may see counts that are one value apart.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry


class _Counts:
    """The counts for one set of label values."""

    __slots__ = ("by_bucket", "total")

    def __init__(self, buckets: int) -> None:
        self.by_bucket = [0] * buckets
        self.total = 0.0


class LightHistogram(Collector):
    """A histogram without locks, for one writing thread."""

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._help_text = help_text
        self.label_names = list(labels)
        self._bounds = list(bounds)
        self._counts: dict[tuple[str, ...], _Counts] = {}
        registry.register(self)

    def observe(self, values: Iterable[float], *labels: str) -> None:
        """Count values. A value equal to a bound belongs to the bucket below it."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = _Counts(len(self._bounds) + 1)
        by_bucket, bounds = counts.by_bucket, self._bounds
        for value in values:
            by_bucket[bisect_left(bounds, value)] += 1
            counts.total += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Return the name, so that the registry refuses a second metric of that name."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the samples of a scrape, with cumulative buckets."""
        family = self._family()
        names = [*map(_format_bound, self._bounds), "+Inf"]
        for labels, counts in list(self._counts.items()):
            buckets = zip(names, accumulate(counts.by_bucket), strict=True)
            family.add_metric(list(labels), list(buckets), counts.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._help_text, labels=self.label_names)


def _format_bound(bound: float) -> str:
    """Format a bound like prometheus_client."""
    return str(float(bound))
