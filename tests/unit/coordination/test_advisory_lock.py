"""Lock keys and settings of an election by advisory lock."""

from __future__ import annotations

import pytest

from leasehold.config import read_settings
from leasehold.coordination import advisory_lock
from leasehold.coordination.advisory_lock import lock_key, require_distinct_keys
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.timing import Timings


def test_lock_key_is_the_same_in_every_release():
    assert lock_key("submission-manager-executor") == -6098055053852305474
    assert -(2**63) <= lock_key("ü") < 2**63


def test_lease_names_with_equal_keys_are_refused(monkeypatch):
    require_distinct_keys(["a", "b", "a"])
    monkeypatch.setattr(advisory_lock, "lock_key", lambda name: len(name))
    require_distinct_keys(["a", "bb", "a"])
    with pytest.raises(
        InvalidArgument, match=r"'a' and 'b' have the same .* key \(1\).*rename one"
    ):
        require_distinct_keys(["b", "cc", "a"])


def test_yield_time_is_a_few_pings_but_at_least_the_shortest_lease():
    assert Timings(cluster_ping_seconds=0.5).cluster_yield_seconds == 2.0
    assert Timings(cluster_ping_seconds=0.05).cluster_yield_seconds == 1.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"through_pooler": True}, "an advisory lock needs its own database session"),
        (
            {"cluster_ping_seconds": 20},
            r"\(80\), must not exceed cluster_lease_seconds \(60\): a leader must stop beginning",
        ),
    ],
)
def test_settings_that_cannot_elect_by_lock_are_refused(given, reason):
    read_settings(**given)
    with pytest.raises(InvalidArgument, match=reason):
        read_settings(elector="advisory", **given)


def test_unknown_elector_is_refused():
    with pytest.raises(InvalidArgument, match=r"^elector: must be 'row' or"):
        read_settings(elector="zookeeper")
