"""How many items are claimed at a time, and when an executor waits for more free slots."""

from __future__ import annotations

import pytest

from leasehold.executor.claim_size import GATHER_SECONDS, claim_size, should_gather


@pytest.mark.parametrize(
    ("room", "latency_seconds", "size"),
    [
        (10, 0, 10),
        (0, 0, 0),
        (1, 0, 1),
        (300, 0.02, 300),
        (10, 5, 6),  # six calls of five seconds fit into the lease
        (10, 29, 1),
        (10, 600, 1),  # one is always tried
    ],
)
def test_claim_shrinks_when_its_calls_would_outlive_the_lease(room, latency_seconds, size):
    assert claim_size(room, latency_seconds=latency_seconds, lease_seconds=30) == size


def gathers(*, free=1, since=0.0, latency=0.001):
    return should_gather(free=free, share=10, seconds_since_taken=since, latency_seconds=latency)


def test_few_free_slots_wait_a_moment_for_more_if_calls_are_short():
    assert gathers()
    assert not gathers(free=3), "a quarter of the slots is free"
    assert not gathers(since=GATHER_SECONDS), "they have waited"


def test_free_slot_waits_for_no_other_if_calls_last_longer_than_the_wait():
    """A quarter of the calls would not end within the wait, so a slot would stand idle."""
    assert gathers(latency=0.012)
    assert not gathers(latency=0.013)
    assert not gathers(latency=0.020)
