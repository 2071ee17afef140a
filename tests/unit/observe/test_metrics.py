"""Metrics count correctly, are bounded, and are all documented."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState
from leasehold.observe.metrics import Metrics
from leasehold.web.service import WebMetrics
from tests.support.metric_labels import label_names

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(leasehold_\w+)` \| (\w+) \|([\w, ]*)\|", re.MULTILINE)
QUEUE = {
    "pending": 7,
    "due": 5,
    "oldest_pending_seconds": 12.5,
    "in_doubt": 2,
    "oldest_in_doubt_seconds": 90.0,
    "held": 1,
    "confirming": 0,
    "deferred": 2,
    "oldest_deferred_seconds": 40.0,
    "expired_leases": 0,
    "oldest_xmin_age": 4711,
    "streams_blocked": {"pay": 3, "mail": 0},
    "seen_at": datetime(2026, 1, 1, tzinfo=UTC),
}


@pytest.fixture
def metrics():
    return Metrics("worker-1")


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"leasehold_{name}", labels)


def of_worker(metrics, name, **labels):
    return value(metrics, name, worker_id="worker-1", **labels)


def described():
    return {
        (name, kind, tuple(sorted(label.strip() for label in labels.split(",") if label.strip())))
        for name, kind, labels in ROW.findall(DOCUMENT.read_text())
    }


def registered(metrics):
    return {
        (
            metric.name + ("_total" if metric.type == "counter" else ""),
            metric.type,
            tuple(sorted(label_names(metrics.registry, metric.name))),
        )
        for metric in metrics.registry.collect()
        if metric.name.startswith("leasehold_")
    }


def test_every_metric_is_described_with_its_kind_and_labels(metrics):
    WebMetrics(metrics.registry, "worker-1")
    assert described() == registered(metrics)


def test_metric_names_of_the_source_documents_exist(metrics):
    text = metrics.exposition().decode()
    for name in ("reaper_recovered_count", "reaper_stale_duration_seconds", "reaper_runs_total"):
        assert f"# TYPE leasehold_{name} " in text


def test_counts_are_kept_per_target_and_worker(metrics):
    metrics.claims("sms", 3)
    metrics.claims("sms", 2)
    metrics.attempts("sms", AttemptState.DISPATCHED, 1)
    metrics.watch_calls(lambda: {"sms": 4}, lambda: 1)
    assert of_worker(metrics, "claims_total", target="sms") == 5
    assert of_worker(metrics, "attempts_total", target="sms", state="DISPATCHED") == 1
    assert of_worker(metrics, "in_flight", target="sms") == 4


@pytest.mark.parametrize("name", ["queue_delay", "call", "time_to_terminal"])
def test_times_are_kept_as_histograms(metrics, name):
    getattr(metrics, name)("sms", 0.3)
    assert of_worker(metrics, f"{name}_seconds_sum", target="sms") == 0.3
    assert of_worker(metrics, f"{name}_seconds_bucket", target="sms", le="0.25") == 0
    assert of_worker(metrics, f"{name}_seconds_bucket", target="sms", le="0.5") == 1


def test_breaker_is_in_one_state_at_a_time(metrics):
    for state in ("open", "half_open"):
        metrics.breaker("sms", state)
    found = {
        state: of_worker(metrics, "breaker_state", target="sms", state=state)
        for state in ("closed", "half_open", "open")
    }
    assert found == {"closed": 0, "half_open": 1, "open": 0}


def test_counters_of_a_worker_start_at_zero(metrics):
    names = ["lease_lost_total", "terminal_guard_hit_total", "late_results_total"]
    names += ["stale_tokens_refused_total", "generation_changes_total"]
    assert [of_worker(metrics, name) for name in names] == [0, 0, 0, 0, 0]
    metrics.lease_lost()
    metrics.lease_lost(2)
    metrics.terminal_guard_hit()
    metrics.late_result()
    metrics.stale_token_refused()
    metrics.generation_changed()
    metrics.heartbeat_lag(0.25)
    assert [of_worker(metrics, name) for name in names] == [3, 1, 1, 1, 1]
    assert of_worker(metrics, "heartbeat_lag_seconds") == 0.25


def test_reaper_reports_runs_recovered_items_and_their_staleness(metrics):
    metrics.reaper_run(2, [1.5, 40])
    metrics.reaper_run(0, [])
    assert of_worker(metrics, "reaper_runs_total") == 2
    assert of_worker(metrics, "reaper_recovered_count") == 0
    assert of_worker(metrics, "reaper_recovered_total") == 2
    assert of_worker(metrics, "reaper_stale_duration_seconds_count") == 2
    assert of_worker(metrics, "reaper_stale_duration_seconds_sum") == 41.5


def test_queue_metrics_equal_the_view_and_null_becomes_zero(metrics):
    metrics.supervisor(QUEUE)
    assert value(metrics, "queue_depth") == 7
    assert value(metrics, "queue_oldest_age_seconds") == 12.5
    assert value(metrics, "held") == 1
    assert value(metrics, "streams_blocked", target="pay") == 3
    assert value(metrics, "streams_blocked", target="mail") == 0
    assert value(metrics, "in_doubt_oldest_age_seconds") == 90
    assert value(metrics, "oldest_xmin_age_transactions") == 4711
    assert value(metrics, "queue_counted_timestamp_seconds") == QUEUE["seen_at"].timestamp()
    metrics.supervisor(dict.fromkeys(QUEUE))
    assert value(metrics, "queue_oldest_age_seconds") == 0


def test_death_is_counted_under_the_id_of_the_dead_worker(metrics):
    metrics.worker_death("worker-9")
    assert value(metrics, "worker_deaths_total", worker_id="worker-9") == 1


def test_names_beyond_the_limit_are_counted_as_other():
    metrics = Metrics("worker-1", names_max=2)
    for target in ("a", "b", "c", "d", "a"):
        metrics.claims(target, 1)
        metrics.worker_death(target)
    for name, label in (("claims_total", "target"), ("worker_deaths_total", "worker_id")):
        more = {"worker_id": "worker-1"} if label == "target" else {}
        found = {
            one: value(metrics, name, **more | {label: one}) for one in ("a", "b", "c", "other")
        }
        assert found == {"a": 2, "b": 1, "c": None, "other": 2}


def test_blocked_streams_of_targets_beyond_the_limit_are_added_up():
    metrics = Metrics("worker-1", names_max=1)
    for blocked, others in (({"a": 1, "b": 2, "c": 3}, 5), ({"a": 0, "b": 0, "c": 1}, 1)):
        metrics.supervisor(QUEUE | {"streams_blocked": blocked})
        assert value(metrics, "streams_blocked", target="a") == blocked["a"]
        assert value(metrics, "streams_blocked", target="other") == others


def test_two_workers_of_one_process_do_not_share_counts(metrics):
    other = Metrics("worker-2")
    other.lease_lost()
    assert of_worker(metrics, "lease_lost_total") == 0


def test_server_answers_until_it_is_closed_and_then_frees_its_port(metrics):
    metrics.lease_lost(3)
    server = metrics.serve(0)
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
        assert b'leasehold_lease_lost_total{worker_id="worker-1"} 3.0' in answer.read()
    server.close()
    metrics.serve(server.port).close()


def test_error_names_the_port_that_is_in_use(metrics):
    server = metrics.serve(0)
    try:
        with pytest.raises(InvalidArgument, match=str(server.port)):
            metrics.serve(server.port)
        with pytest.raises(InvalidArgument, match="70000"):
            metrics.serve(70000)
    finally:
        server.close()
