"""Metrics with labels: of this worker, by target or by lease. Names from outside are bounded.

Each call is observed by three histograms, and the histogram of prometheus_client takes two locks
per value and searches its buckets linearly. `LightHistogram` takes no lock: only the thread of the
event loop writes. A scrape in another thread may see counts that are one value apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry


OTHER = "other"

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


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


class BoundedNames:
    """Keeps the first names and replaces later ones by "other", so that memory is bounded."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._names: set[str] = set()

    def bounded(self, name: str) -> str:
        """Return the name, or "other" if there are too many."""
        if name in self._names:
            return name
        if len(self._names) >= self._names_max:
            return OTHER
        self._names.add(name)
        return name


class Labelled(Generic[Metric]):
    """A metric of this worker by further labels. Caches its children: prometheus_client locks."""

    def __init__(self, metric: Metric, worker_id: str) -> None:
        self._metric = metric
        self._worker_id = worker_id
        self._children: dict[tuple[str, ...], Metric] = {}

    def at(self, *values: str) -> Metric:
        """Return the metric for these labels."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._metric.labels(self._worker_id, *values)
        return child

    def forget(self, name: str) -> None:
        """Remove what has this first label."""
        for values in [values for values in self._children if values[0] == name]:
            del self._children[values]
            self._metric.remove(self._worker_id, *values)


class InFlight(Collector):
    """The calls in flight, read when they are scraped: no one has to tell when they end."""

    def __init__(self, registry: CollectorRegistry, worker_id: str, names: BoundedNames) -> None:
        self.source: Callable[[], Mapping[str, int]] = dict
        self.label_names = ["worker_id", "target"]
        self._worker_id = worker_id
        self._names = names
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the name, so that the registry refuses a second metric of that name."""
        yield GaugeMetricFamily("leasehold_in_flight", "Calls in flight.", labels=self.label_names)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the current values."""
        by_name: defaultdict[str, int] = defaultdict(int)
        for target, count in list(self.source().items()):  # a copy: this is another thread
            by_name[self._names.bounded(target)] += count
        for found in self.describe():
            for name, count in by_name.items():
                found.add_metric([self._worker_id, name], count)
            yield found


class Factory:
    """Creates metrics that carry the worker's id."""

    def __init__(self, registry: CollectorRegistry, worker_id: str) -> None:
        self._registry = registry
        self._worker_id = worker_id

    def by(
        self,
        kind: type[Metric],
        name: str,
        help_text: str,
        *labels: str,
        **more: Any,  # noqa: ANN401 (the buckets of a histogram)
    ) -> Labelled[Metric]:
        """Create a metric of the worker by further labels."""
        names = ["worker_id", *labels]
        metric = kind(f"leasehold_{name}", help_text, names, registry=self._registry, **more)
        return Labelled(metric, self._worker_id)

    def of_worker(
        self,
        kind: type[Metric],
        name: str,
        help_text: str,
        **more: Any,  # noqa: ANN401 (as above)
    ) -> Metric:
        """Create a metric of the worker as a whole."""
        return self.by(kind, name, help_text, **more).at()

    def timed(self, name: str, help_text: str, bounds: Sequence[float]) -> LightHistogram:
        """Create a histogram of seconds by target."""
        labels = ["worker_id", "target"]
        return LightHistogram(f"leasehold_{name}", help_text, labels, bounds, self._registry)
