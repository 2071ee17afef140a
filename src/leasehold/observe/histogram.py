"""Histograms that cost next to nothing to feed.

Every call is timed three times over, and the histogram of prometheus_client takes two locks for
each value and walks through its bounds. Here a value is counted by the one thread that runs the
event loop; who scrapes, from whichever thread, reads whole numbers that may be a value apart.
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
    """What was seen under one set of labels."""

    __slots__ = ("by_bucket", "total")

    def __init__(self, buckets: int) -> None:
        self.by_bucket = [0] * buckets
        self.total = 0.0


class LightHistogram(Collector):
    """Counts values by the bucket that they fall into, per set of labels."""

    def __init__(
        self,
        name: str,
        told: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._told = told
        self.label_names = list(labels)
        self._bounds = list(bounds)
        self._counts: dict[tuple[str, ...], _Counts] = {}
        registry.register(self)

    def observe(self, values: Iterable[float], *labels: str) -> None:
        """Count values; a bound belongs to the bucket below it."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = _Counts(len(self._bounds) + 1)
        by_bucket, bounds = counts.by_bucket, self._bounds
        for value in values:
            by_bucket[bisect_left(bounds, value)] += 1
            counts.total += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Give what it is called, so that a registry refuses another of its name."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Give what a scrape shows: each bucket with all that are below it."""
        family = self._family()
        names = [*map(_written, self._bounds), "+Inf"]
        for labels, counts in list(self._counts.items()):
            buckets = zip(names, accumulate(counts.by_bucket), strict=True)
            family.add_metric(list(labels), list(buckets), counts.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._told, labels=self.label_names)


def _written(bound: float) -> str:
    """Write a bound as prometheus_client does."""
    return str(float(bound))
