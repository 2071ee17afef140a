"""Reads the label names of a metric, even before it has a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.observe.labelled import InFlight, LightHistogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def label_names(registry: CollectorRegistry, name: str) -> set[str]:
    """Return the label names; only the registry's internals know them."""
    collector = registry._names_to_collectors[name]
    if isinstance(collector, (InFlight, LightHistogram)):
        return set(collector.label_names)
    return set(collector._labelnames)
