"""Our histogram exposes the same samples as that of prometheus_client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from leasehold.observe.labelled import LightHistogram

BOUNDS = (0.005, 0.01, 0.5, 1, 10)
LABELS = ["worker_id", "target"]
# Includes the bounds: a value equal to a bound belongs to the bucket below it.
VALUES = st.one_of(st.floats(0, 1e6), st.sampled_from(BOUNDS))
SEEN = st.lists(st.tuples(VALUES, st.sampled_from([("w", "sms"), ("w", 'a "b"')])))


def exposed(registry):
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(SEEN)
def test_exposition_equals_that_of_prometheus_client(seen):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram("call_seconds", "Of a call.", LABELS, BOUNDS, ours)
    model = Histogram("call_seconds", "Of a call.", LABELS, buckets=BOUNDS, registry=theirs)
    for value, labels in seen:
        light.observe([value], *labels)
        model.labels(*labels).observe(value)
    assert exposed(ours) == exposed(theirs)


def test_registry_refuses_a_second_histogram_of_the_same_name():
    registry = CollectorRegistry()
    LightHistogram("call_seconds", "Of a call.", LABELS, BOUNDS, registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        LightHistogram("call_seconds", "Of another.", LABELS, BOUNDS, registry)
