"""Metrics: what a worker counts and times, in Prometheus' exposition format.

Every metric is described in docs/reference/metrics.md, and a test compares the two. What a worker
does carries its `worker_id`; what the database says of the whole queue does not, since every worker
that asks gets the same answer. Values of labels that come from outside (targets, dead workers) are
bounded in number: past `names_max` they are counted together as "other".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.process_collector import ProcessCollector

from leasehold.domain.errors import InvalidArgument
from leasehold.observe.histogram import LightHistogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasehold.domain.intent import AttemptState

BreakerState = Literal["closed", "half_open", "open"]
BREAKER_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")

OTHER = "other"
NAMES_MAX = 1000

# From a local call that takes a millisecond to one that a whole lease is not enough for.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
# Waiting and retrying may go on for a day.
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400)
_STALE_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, worker_id: str = "", *, names_max: int = NAMES_MAX) -> None:
        self.registry = CollectorRegistry()
        self._worker_id = worker_id
        ProcessCollector(registry=self.registry)
        self._targets = _BoundedNames(names_max)
        self._dead_workers = _BoundedNames(names_max)
        self._leases = _BoundedNames(names_max)
        made = _Maker(self.registry, worker_id)
        self._claims = made.of_target(Counter, "claims", "Items claimed.")
        self._attempts = made.of_target(
            Counter, "attempts", "Results that reached the ledger, by its state.", "state"
        )
        self._queue_delay = made.timed(
            "queue_delay_seconds", "From due to claimed, or handed out by a leader.", _WAIT_BUCKETS
        )
        self._call = made.timed("call_seconds", "Of one call to the gateway.", _CALL_BUCKETS)
        self._time_to_terminal = made.timed(
            "time_to_terminal_seconds",
            "From accepted into the database to finished.",
            _WAIT_BUCKETS,
        )
        self._in_flight = made.of_target(Gauge, "in_flight", "Calls being made.")
        self._breaker = made.of_target(
            Gauge, "breaker_state", "1 for the state that the target's breaker is in.", "state"
        )
        self._worker_counters(made)
        self._cluster(made)
        self._reaper(made)
        self._queue = {
            column: Gauge(f"leasehold_{name}", told, registry=self.registry)
            for column, (name, told) in _QUEUE.items()
        }

    def _worker_counters(self, made: _Maker) -> None:
        self._lease_lost = made.of_worker(
            Counter, "lease_lost", "Claims and leases that were lost while we held them."
        )
        self._terminal_guard_hit = made.of_worker(
            Counter, "terminal_guard_hit", "Second terminal rows that the index stopped: a defect."
        )
        self._late_results = made.of_worker(
            Counter, "late_results", "Results discarded because trust in the claim had ended."
        )
        self._heartbeat_lag = made.of_worker(
            Gauge, "heartbeat_lag_seconds", "By how much the last heartbeat came late."
        )

    def _cluster(self, made: _Maker) -> None:
        self._is_leader = made.of_lease(Gauge, "is_leader", "1 while this instance leads.")
        self._elections = made.of_lease(Counter, "elections", "Elections that this instance won.")
        self._schedule_size = made.of_lease(
            Gauge, "schedule_size", "Intents in a leader's memory, waiting to be due."
        )
        self._schedule_missed = made.of_lease(
            Counter, "schedule_missed", "Intents that only a full look found: a defect."
        )

    def _reaper(self, made: _Maker) -> None:
        self._reaper_runs = made.of_worker(Counter, "reaper_runs", "Runs of the reaper.")
        self._reaper_recovered_count = made.of_worker(
            Gauge, "reaper_recovered_count", "Items recovered by the reaper's last run."
        )
        self._reaper_recovered = made.of_worker(
            Counter, "reaper_recovered", "Items recovered by the reaper."
        )
        self._reaper_stale = made.of_worker(
            Histogram,
            "reaper_stale_duration_seconds",
            "How long recovered items had been past their lease.",
            buckets=_STALE_BUCKETS,
        )
        self._worker_deaths = Counter(
            "leasehold_worker_deaths",
            "Workers found dead; worker_id is the dead one's.",
            ["worker_id"],
            registry=self.registry,
        )

    def claims(self, target: str, n: int) -> None:
        """Count items that were claimed."""
        self._claims.at(self._targets.bounded(target)).inc(n)

    def attempts(self, target: str, outcome_state: AttemptState | str, n: int) -> None:
        """Count results that the ledger has now, by the state that they have there."""
        self._attempts.at(self._targets.bounded(target), str(outcome_state)).inc(n)

    def queue_delay(self, target: str, *seconds: float) -> None:
        """Time from due to claimed; of each of a batch."""
        self._queue_delay.observe(seconds, self._worker_id, self._targets.bounded(target))

    def call(self, target: str, *seconds: float) -> None:
        """Time calls to the gateway; each of those that ended together."""
        self._call.observe(seconds, self._worker_id, self._targets.bounded(target))

    def time_to_terminal(self, target: str, *seconds: float) -> None:
        """Time from accepted into the database to finished; of each of a batch."""
        self._time_to_terminal.observe(seconds, self._worker_id, self._targets.bounded(target))

    def lease_lost(self, n: int = 1) -> None:
        """Count claims and leases that were lost while we held them."""
        self._lease_lost.inc(n)

    def terminal_guard_hit(self) -> None:
        """Count a second terminal row that only the index stopped."""
        self._terminal_guard_hit.inc()

    def late_result(self) -> None:
        """Count a result that came too late to be written."""
        self._late_results.inc()

    def in_flight(self, target: str, n: int) -> None:
        """Say how many calls are being made."""
        self._in_flight.at(self._targets.bounded(target)).set(n)

    def breaker(self, target: str, state: BreakerState) -> None:
        """Say which state a target's breaker is in."""
        name = self._targets.bounded(target)
        for one in BREAKER_STATES:
            self._breaker.at(name, one).set(one == state)

    def leader(self, lease_name: str, *, is_leader: bool) -> None:
        """Say whether this instance leads."""
        self._is_leader.at(self._leases.bounded(lease_name)).set(is_leader)

    def election(self, lease_name: str) -> None:
        """Count an election that this instance won."""
        self._elections.at(self._leases.bounded(lease_name)).inc()

    def schedule(self, lease_name: str, size: int, missed: int = 0) -> None:
        """Say how much a leader has in memory, and count what its cursor had missed."""
        self._schedule_size.at(self._leases.bounded(lease_name)).set(size)
        self._schedule_missed.at(self._leases.bounded(lease_name)).inc(missed)

    def heartbeat_lag(self, seconds: float) -> None:
        """Say by how much the last heartbeat came late."""
        self._heartbeat_lag.set(seconds)

    def reaper_run(self, recovered: int, stale_seconds: Iterable[float]) -> None:
        """Count a run of the reaper, and how long each item that it recovered had been stuck."""
        self._reaper_runs.inc()
        self._reaper_recovered_count.set(recovered)
        self._reaper_recovered.inc(recovered)
        for seconds in stale_seconds:
            self._reaper_stale.observe(seconds)

    def supervisor(self, row: Mapping[str, Any]) -> None:
        """Show a row of the view leasehold.supervisor, by the names of its columns."""
        for column, gauge in self._queue.items():
            gauge.set(row[column] or 0)

    def worker_death(self, worker_id: str) -> None:
        """Count a worker that was found dead: repair had to end its claims, or it said so."""
        self._worker_deaths.labels(self._dead_workers.bounded(worker_id)).inc()

    def exposition(self) -> bytes:
        """Give all metrics as text, for a server that is not ours."""
        return generate_latest(self.registry)

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Answer Prometheus on a port (0: any that is free), in a thread, until close()."""
        return MetricsServer(self.registry, port, host)


# Columns of the view, and what they are called here.
_QUEUE = {
    "pending": ("queue_depth", "Unfinished intents in the whole queue."),
    "due": ("queue_due", "Unfinished intents that are due."),
    "oldest_pending_seconds": ("queue_oldest_age_seconds", "Age of the oldest unfinished intent."),
    "in_doubt": ("in_doubt", "Intents of which nobody knows whether they had their effect."),
    "oldest_in_doubt_seconds": (
        "in_doubt_oldest_age_seconds",
        "For how long nobody has known of the oldest doubt, while the contract says what follows.",
    ),
    "held": ("held", "Intents that wait for a person."),
    "confirming": ("confirming", "Intents that the gateway has accepted but not confirmed."),
    "expired_leases": ("expired_leases", "Claims past their lease that nobody has repaired yet."),
    "oldest_xmin_age": (
        "oldest_xmin_age_transactions",
        "Transactions since the oldest that keeps dead rows from being removed.",
    ),
}


class _BoundedNames:
    """The first so many names stay themselves; later ones share one, or memory would grow."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._names: set[str] = set()

    def bounded(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._names_max:
            return OTHER
        self._names.add(name)
        return name


class _Labelled(Generic[Metric]):
    """A metric of this worker by further labels; looking a child up in prometheus_client locks."""

    def __init__(self, metric: Metric, worker_id: str) -> None:
        self._metric = metric
        self._worker_id = worker_id
        self._children: dict[tuple[str, ...], Metric] = {}

    def at(self, *values: str) -> Metric:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._metric.labels(self._worker_id, *values)
        return child


class _Maker:
    """Makes metrics that carry the worker's id."""

    def __init__(self, registry: CollectorRegistry, worker_id: str) -> None:
        self._registry = registry
        self._worker_id = worker_id

    def of_target(
        self,
        kind: type[Metric],
        name: str,
        told: str,
        *labels: str,
    ) -> _Labelled[Metric]:
        return _Labelled(self._made(kind, name, told, "target", *labels), self._worker_id)

    def timed(self, name: str, told: str, bounds: Sequence[float]) -> LightHistogram:
        labels = ["worker_id", "target"]
        return LightHistogram(f"leasehold_{name}", told, labels, bounds, self._registry)

    def of_lease(self, kind: type[Metric], name: str, told: str) -> _Labelled[Metric]:
        return _Labelled(self._made(kind, name, told, "lease_name"), self._worker_id)

    def of_worker(
        self,
        kind: type[Metric],
        name: str,
        told: str,
        **more: Any,  # noqa: ANN401 (buckets, for a histogram)
    ) -> Metric:
        return self._made(kind, name, told, **more).labels(self._worker_id)

    def _made(
        self,
        kind: type[Metric],
        name: str,
        told: str,
        *labels: str,
        **more: Any,  # noqa: ANN401 (as above)
    ) -> Metric:
        names = ["worker_id", *labels]
        return kind(f"leasehold_{name}", told, names, registry=self._registry, **more)


class MetricsServer:
    """Answers Prometheus in a thread. Loopback by default: metrics tell what a business does."""

    def __init__(self, registry: CollectorRegistry, port: int, host: str) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(f"metrics cannot be served on {host}:{port}: {error}") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop answering; returns when the port is free again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
