"""The names of a metric's labels, also where nothing was counted under them yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.observe.histogram import LightHistogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def label_names(registry: CollectorRegistry, name: str) -> set[str]:
    """Look where only the registry knows."""
    collector = registry._names_to_collectors[name]
    if isinstance(collector, LightHistogram):
        return set(collector.label_names)
    return set(collector._labelnames)
