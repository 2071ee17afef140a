"""The metrics of the whole queue, from the count in the database. Every instance shows the same."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry

    from leasehold.observe.labelled import BoundedNames

# Columns of the view, with the name and the help text of their metric.
_QUEUE = {
    "pending": ("queue_depth", "Unfinished intents."),
    "due": ("queue_due", "Unfinished intents that are due."),
    "oldest_pending_seconds": ("queue_oldest_age_seconds", "Age of the oldest unfinished intent."),
    "in_doubt": ("in_doubt", "In-doubt intents that will resolve automatically."),
    "oldest_in_doubt_seconds": (
        "in_doubt_oldest_age_seconds",
        "Age of the oldest in-doubt intent that will resolve automatically.",
    ),
    "deferred": ("deferred", "Intents whose last call was deferred."),
    "oldest_deferred_seconds": (
        "deferred_oldest_age_seconds",
        "How long the calls of an intent have been deferred, at most.",
    ),
    "held": ("held", "Intents waiting for a person."),
    "confirming": ("confirming", "Intents accepted by the gateway, not yet confirmed."),
    "expired_leases": ("expired_leases", "Expired claims that are not yet repaired."),
    "seen_at": (
        "queue_counted_timestamp_seconds",
        "When the oldest part of the queue was last counted, as Unix time.",
    ),
    "oldest_xmin_age": (
        "oldest_xmin_age_transactions",
        "Transactions since the oldest one that keeps dead rows from being removed.",
    ),
}


class QueueMetrics:
    """A gauge per column of the view leasehold.supervisor."""

    def __init__(self, registry: CollectorRegistry, targets: BoundedNames) -> None:
        self._targets = targets
        self._gauges = {
            column: Gauge(f"leasehold_{name}", help_text, registry=registry)
            for column, (name, help_text) in _QUEUE.items()
        }
        self._streams_blocked = Gauge(
            "leasehold_streams_blocked",
            "Streams that are paused until a person resumes them.",
            ["target"],
            registry=registry,
        )

    def show(self, row: Mapping[str, Any]) -> None:
        """Set the gauges from a row of the view."""
        for column, gauge in self._gauges.items():
            value = row[column]
            gauge.set(value.timestamp() if isinstance(value, datetime) else value or 0)
        counted: Mapping[str, int] = row["streams_blocked"] or {}
        blocked: dict[str, int] = {}
        for target, streams in counted.items():
            name = self._targets.bounded(target)
            blocked[name] = blocked.get(name, 0) + streams
        for target, streams in blocked.items():
            self._streams_blocked.labels(target).set(streams)
