"""Metrics of a process, in Prometheus' exposition format.

docs/reference/metrics.md describes every metric, and a test compares the two. Metrics of a worker
carry its `worker_id`. Metrics of the whole queue do not, because every worker reads the same count
from the database. Label values that come from outside (targets, leases, dead workers) are bounded:
beyond `names_max` they become "other".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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
from leasehold.observe.labelled import BoundedNames, Factory, InFlight
from leasehold.observe.queue_metrics import QueueMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leasehold.domain.intent import AttemptState


class MetricsServer:
    """Serves metrics in a thread. On loopback by default: metrics reveal business activity."""

    def __init__(self, registry: CollectorRegistry, port: int, host: str) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(f"cannot serve metrics on {host}:{port}: {error}") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving; returns when the port is free again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


BreakerState = Literal["closed", "half_open", "open"]
BREAKER_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")

NAMES_MAX = 1000

# From a local call of one millisecond to a call that takes longer than a lease.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
# An intent may wait or be retried for a day.
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400)
_STALE_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self, worker_id: str = "", *, names_max: int = NAMES_MAX) -> None:
        self.registry = CollectorRegistry()
        self._worker_id = worker_id
        ProcessCollector(registry=self.registry)
        self._targets = BoundedNames(names_max)
        self._dead_workers = BoundedNames(names_max)
        self._leases = BoundedNames(names_max)
        factory = Factory(self.registry, worker_id)
        self._claims = factory.by(Counter, "claims", "Items claimed.", "target")
        self._attempts = factory.by(
            Counter,
            "attempts",
            "Results written to the ledger, by their state there.",
            "target",
            "state",
        )
        self._deferrals = factory.by(
            Counter, "deferrals", "Calls that had no effect and are made again.", "target"
        )
        self._queue_delay = factory.timed(
            "queue_delay_seconds",
            "Time from due to claimed, or to dispatched by a leader.",
            _WAIT_BUCKETS,
        )
        self._call = factory.timed("call_seconds", "Duration of one gateway call.", _CALL_BUCKETS)
        self._lookups = factory.by(Counter, "lookups", "Questions about submissions.", "target")
        self._lookup_requests = factory.by(
            Counter, "lookup_requests", "Requests that these questions took.", "target"
        )
        self._time_to_terminal = factory.timed(
            "time_to_terminal_seconds",
            "Time from accepted into the database to finished.",
            _WAIT_BUCKETS,
        )
        self._in_flight = InFlight(self.registry, worker_id, self._targets)
        self._breaker = factory.by(
            Gauge, "breaker_state", "1 for the current state of the breaker.", "target", "state"
        )
        self._not_served = factory.by(
            Gauge, "target_not_served", "1 if this instance does not serve the target.", "target"
        )
        self._streams_taken_over = factory.by(
            Counter, "streams_taken_over", "Streams taken over from other holders.", "target"
        )
        self._contract_refused = factory.by(
            Counter, "contract_refused", "Tries to open a version that failed.", "target"
        )
        self._add_worker_metrics(factory)
        self._add_leader_metrics(factory)
        self._add_reaper_metrics(factory)
        self._queue = QueueMetrics(self.registry, self._targets)

    def _add_worker_metrics(self, factory: Factory) -> None:
        self._lease_lost = factory.of_worker(
            Counter, "lease_lost", "Claims and leases lost while held."
        )
        self._generation_changes = factory.of_worker(
            Counter, "generation_changes", "Times that the database may have lost commits."
        )
        self._terminal_guard_hit = factory.of_worker(
            Counter,
            "terminal_guard_hit",
            "Second terminal rows stopped by the unique index: a defect.",
        )
        self._stale_tokens_refused = factory.of_worker(
            Counter, "stale_tokens_refused", "Tokens called stale although we held the lease."
        )
        self._locks_squatted = factory.of_worker(
            Gauge, "locks_squatted", "Advisory locks of ours that foreign sessions hold."
        )
        self._late_results = factory.of_worker(
            Counter, "late_results", "Results discarded because trust in the claim had ended."
        )
        self._stuck_calls = factory.of_worker(
            Gauge, "stuck_calls", "Calls given up that have not ended; each keeps a slot."
        )
        self._loop_blocked = factory.of_worker(
            Counter, "loop_blocked", "Times that a function kept the event loop from running."
        )
        self._observer_failures = factory.of_worker(
            Counter, "observer_failures", "Methods of the observer that raised."
        )
        self._observations_dropped = factory.of_worker(
            Counter, "observations_dropped", "Events that the observer was too slow for."
        )
        self._heartbeat_lag = factory.of_worker(
            Gauge, "heartbeat_lag_seconds", "How late the last heartbeat was."
        )

    def _add_leader_metrics(self, factory: Factory) -> None:
        self._is_leader = factory.by(
            Gauge, "is_leader", "1 while this instance leads the group.", "lease_name"
        )
        self._elections = factory.by(
            Counter, "elections", "Elections won by this instance.", "lease_name"
        )
        self._schedule_size = factory.by(
            Gauge, "schedule_size", "Intents in the leader's memory.", "lease_name"
        )
        self._schedule_missed = factory.by(
            Counter,
            "schedule_missed",
            "Intents found by a reconcile that the cursor missed: a defect.",
            "lease_name",
        )

    def _add_reaper_metrics(self, factory: Factory) -> None:
        self._reaper_runs = factory.of_worker(Counter, "reaper_runs", "Runs of the reaper.")
        self._reaper_recovered_count = factory.of_worker(
            Gauge, "reaper_recovered_count", "Items recovered by the last run."
        )
        self._reaper_recovered = factory.of_worker(
            Counter, "reaper_recovered", "Items recovered by all runs."
        )
        self._reaper_stale = factory.of_worker(
            Histogram,
            "reaper_stale_duration_seconds",
            "How long recovered items were past their lease.",
            buckets=_STALE_BUCKETS,
        )
        self._worker_deaths = Counter(
            "leasehold_worker_deaths",
            "Workers found dead; worker_id is the dead worker's.",
            ["worker_id"],
            registry=self.registry,
        )

    def claims(self, target: str, n: int) -> None:
        """Count claimed items."""
        self._claims.at(self._targets.bounded(target)).inc(n)

    def attempts(self, target: str, outcome_state: AttemptState | str, n: int) -> None:
        """Count results on the ledger, by their state there."""
        self._attempts.at(self._targets.bounded(target), str(outcome_state)).inc(n)

    def deferral(self, target: str) -> None:
        """Count a call that spends no attempt and is made again."""
        self._deferrals.at(self._targets.bounded(target)).inc()

    def streams_taken_over(self, target: str, n: int) -> None:
        """Count streams taken over from holders whose leases had expired."""
        self._streams_taken_over.at(self._targets.bounded(target)).inc(n)

    def queue_delay(self, target: str, *seconds: float) -> None:
        """Observe the time from due to claimed, for each item of a batch."""
        self._queue_delay.observe(seconds, self._worker_id, self._targets.bounded(target))

    def call(self, target: str, *seconds: float) -> None:
        """Observe the duration of gateway calls."""
        self._call.observe(seconds, self._worker_id, self._targets.bounded(target))

    def lookup(self, target: str, submissions: int) -> None:
        """Count one request that asks about submissions."""
        name = self._targets.bounded(target)
        self._lookups.at(name).inc(submissions)
        self._lookup_requests.at(name).inc()

    def time_to_terminal(self, target: str, *seconds: float) -> None:
        """Observe the time from accepted to finished, for each item of a batch."""
        self._time_to_terminal.observe(seconds, self._worker_id, self._targets.bounded(target))

    def lease_lost(self, n: int = 1) -> None:
        """Count claims and leases lost while held."""
        self._lease_lost.inc(n)

    def generation_changed(self) -> None:
        """Count that the database may have lost commits."""
        self._generation_changes.inc()

    def terminal_guard_hit(self) -> None:
        """Count a second terminal row that the unique index stopped."""
        self._terminal_guard_hit.inc()

    def stale_token_refused(self) -> None:
        """Count a fencing token that a gateway called stale although we held the lease."""
        self._stale_tokens_refused.inc()

    def locks_squatted(self, locks: int) -> None:
        """Set how many advisory locks of ours are held by sessions that are no instance."""
        self._locks_squatted.set(locks)

    def late_result(self) -> None:
        """Count a result that was too late to be written."""
        self._late_results.inc()

    def watch_calls(
        self, in_flight: Callable[[], Mapping[str, int]], stuck_calls: Callable[[], float]
    ) -> None:
        """Read the calls in flight of each target, and the stuck calls, when they are scraped."""
        self._in_flight.source = in_flight
        self._stuck_calls.set_function(stuck_calls)

    def breaker(self, target: str, state: BreakerState) -> None:
        """Set the state of a target's breaker."""
        name = self._targets.bounded(target)
        for one in BREAKER_STATES:
            self._breaker.at(name, one).set(one == state)

    def forget_breaker(self, target: str) -> None:
        """Show no breaker of a target that this instance does not serve any more."""
        self._breaker.forget(target)

    def target_served(self, target: str, *, is_served: bool) -> None:
        """Set whether this instance serves a published target."""
        self._not_served.at(self._targets.bounded(target)).set(not is_served)

    def contract_refused(self, target: str) -> None:
        """Count an intent that was given back because its contract version cannot be opened."""
        self._contract_refused.at(self._targets.bounded(target)).inc()

    def forget_target(self, target: str) -> None:
        """Say nothing about a target that is not published any more."""
        self._not_served.forget(target)

    def leader(self, lease_name: str, *, is_leader: bool) -> None:
        """Set whether this instance leads the group."""
        self._is_leader.at(self._leases.bounded(lease_name)).set(is_leader)

    def forget_group(self, lease_name: str) -> None:
        """Show no state of a group that has no targets here any more."""
        self._is_leader.forget(lease_name)
        self._schedule_size.forget(lease_name)

    def election(self, lease_name: str) -> None:
        """Count an election won by this instance."""
        self._elections.at(self._leases.bounded(lease_name)).inc()

    def schedule(self, lease_name: str, size: int, missed: int = 0) -> None:
        """Set the number of intents in a leader's memory; count those that its cursor missed."""
        self._schedule_size.at(self._leases.bounded(lease_name)).set(size)
        self._schedule_missed.at(self._leases.bounded(lease_name)).inc(missed)

    def loop_blocked(self) -> None:
        """Count a function that kept the event loop from running."""
        self._loop_blocked.inc()

    def observer_failed(self) -> None:
        """Count a method of the observer that raised."""
        self._observer_failures.inc()

    def observations_dropped(self, n: int) -> None:
        """Count events that the observer was not told."""
        self._observations_dropped.inc(n)

    def heartbeat_lag(self, seconds: float) -> None:
        """Set how late the last heartbeat was."""
        self._heartbeat_lag.set(seconds)

    def reaper_run(self, recovered: int, stale_seconds: Iterable[float]) -> None:
        """Count a run of the reaper and the items that it recovered."""
        self._reaper_runs.inc()
        self._reaper_recovered_count.set(recovered)
        self._reaper_recovered.inc(recovered)
        for seconds in stale_seconds:
            self._reaper_stale.observe(seconds)

    def supervisor(self, row: Mapping[str, Any]) -> None:
        """Set the queue metrics from a row of the view leasehold.supervisor."""
        self._queue.show(row)

    def worker_death(self, worker_id: str) -> None:
        """Count a worker that was found dead."""
        self._worker_deaths.labels(self._dead_workers.bounded(worker_id)).inc()

    def exposition(self) -> bytes:
        """Return all metrics as text, for another server to serve."""
        return generate_latest(self.registry)

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the metrics on a port (0: any free one), in a thread, until close()."""
        return MetricsServer(self.registry, port, host)
