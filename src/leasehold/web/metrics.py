"""The metrics of the HTTP API, in the registry of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class WebMetrics:
    """The API metrics of one process; `worker_id` as in all other metrics."""

    def __init__(self, registry: CollectorRegistry, worker_id: str) -> None:
        self._worker_id = worker_id
        self._requests = Counter(
            "leasehold_http_requests",
            "HTTP requests answered, by method, route and status.",
            ["worker_id", "method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "leasehold_http_request_seconds",
            "Time from the head of a request to the end of its response.",
            ["worker_id", "method", "route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch = Histogram(
            "leasehold_intake_batch_size",
            "Intents that shared one commit.",
            ["worker_id"],
            buckets=_SIZES,
            registry=registry,
        ).labels(worker_id)
        self._commit = Histogram(
            "leasehold_intake_commit_seconds",
            "Time of one enqueue call, with its commit.",
            ["worker_id"],
            buckets=_SECONDS,
            registry=registry,
        ).labels(worker_id)
        self._waiting = _gauge(
            registry, "leasehold_intake_waiting", "Intents that wait for an enqueue call."
        )
        self._listeners = _gauge(
            registry, "leasehold_event_listeners", "Clients that listen to events."
        )
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        key = (method, route, status)
        children = self._children.get(key)
        if children is None:
            children = self._children[key] = (
                self._requests.labels(self._worker_id, method, route, str(status)),
                self._seconds.labels(self._worker_id, method, route),
            )
        children[0].inc()
        children[1].observe(seconds)

    def batch(self, intents: int, seconds: float) -> None:
        """Count an enqueue call."""
        self._batch.observe(intents)
        self._commit.observe(seconds)

    def watch(self, waiting: Callable[[], float], listeners: Callable[[], float]) -> None:
        """Read these gauges when they are scraped."""
        self._waiting.labels(self._worker_id).set_function(waiting)
        self._listeners.labels(self._worker_id).set_function(listeners)


def _gauge(registry: CollectorRegistry, name: str, help_text: str) -> Gauge:
    return Gauge(name, help_text, ["worker_id"], registry=registry)
