"""Metrics with labels: of this worker, by target or by lease. Names from outside are bounded."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from leasehold.observe.histogram import LightHistogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

OTHER = "other"

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


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

    def of_target(
        self,
        kind: type[Metric],
        name: str,
        help_text: str,
        *labels: str,
    ) -> Labelled[Metric]:
        """Create a metric by target."""
        return Labelled(self._create(kind, name, help_text, "target", *labels), self._worker_id)

    def timed(self, name: str, help_text: str, bounds: Sequence[float]) -> LightHistogram:
        """Create a histogram of seconds by target."""
        labels = ["worker_id", "target"]
        return LightHistogram(f"leasehold_{name}", help_text, labels, bounds, self._registry)

    def of_lease(self, kind: type[Metric], name: str, help_text: str) -> Labelled[Metric]:
        """Create a metric by lease."""
        return Labelled(self._create(kind, name, help_text, "lease_name"), self._worker_id)

    def of_worker(
        self,
        kind: type[Metric],
        name: str,
        help_text: str,
        **more: Any,  # noqa: ANN401 (the buckets of a histogram)
    ) -> Metric:
        """Create a metric of the worker as a whole."""
        return self._create(kind, name, help_text, **more).labels(self._worker_id)

    def _create(
        self,
        kind: type[Metric],
        name: str,
        help_text: str,
        *labels: str,
        **more: Any,  # noqa: ANN401 (as above)
    ) -> Metric:
        names = ["worker_id", *labels]
        return kind(f"leasehold_{name}", help_text, names, registry=self._registry, **more)
