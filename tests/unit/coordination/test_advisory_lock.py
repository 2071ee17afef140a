"""What an election by advisory lock is made of, before it meets a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leasehold.config import read_settings
from leasehold.coordination import advisory_lock
from leasehold.coordination.advisory_lock import lock_key, require_distinct_keys
from leasehold.coordination.term import Term
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.lease import Lease, TrustWindow
from leasehold.domain.timing import Timings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE = Lease(name="a", holder_id="h", epoch=1, expires_at=NOON, grace_expires_at=NOON)


def test_key_of_a_name_is_the_same_in_every_release():
    assert lock_key("submission-manager-executor") == -6098055053852305474
    assert -(2**63) <= lock_key("ü") < 2**63


def test_names_with_equal_keys_are_refused_by_name(monkeypatch):
    require_distinct_keys(["a", "b", "a"])
    monkeypatch.setattr(advisory_lock, "lock_key", lambda name: len(name))
    require_distinct_keys(["a", "bb", "a"])
    with pytest.raises(
        InvalidArgument, match=r"'a' and 'b' have the same .* key \(1\).*rename one"
    ):
        require_distinct_keys(["b", "cc", "a"])


def test_term_may_be_finished_for_longer_than_something_new_may_begin():
    term = Term(LEASE, trust=TrustWindow(60.0), start=TrustWindow(1.0))
    assert term.may_start(0.9)
    assert not term.may_start(1.0)
    assert not term.is_over(59.0)
    assert term.may_start_later(1.0)
    term.extend(NOON + timedelta(minutes=1), TrustWindow(61.0), TrustWindow(2.0))
    assert term.may_start(1.9), "a renewal that comes late lets it go on"
    assert (term.lease.epoch, term.lease.expires_at) == (1, NOON + timedelta(minutes=1))
    term.end("a test")
    assert not term.may_start(1.9)


def test_term_that_is_closing_begins_nothing_but_may_be_finished():
    term = Term(LEASE, TrustWindow(60.0))
    term.close("a test")
    assert not term.may_start(0.0)
    assert not term.may_start_later(0.0)
    assert not term.is_over(0.0)


def test_term_of_the_row_begins_as_long_as_it_is_trusted():
    term = Term(LEASE, TrustWindow(60.0))
    assert term.may_start(59.9)
    assert not term.may_start(60.0)


def test_nothing_begins_after_a_few_pings_were_missed_but_not_within_the_shortest_lease():
    assert Timings(cluster_ping_seconds=0.5).cluster_yield_seconds == 2.0
    assert Timings(cluster_ping_seconds=0.05).cluster_yield_seconds == 1.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"through_pooler": True}, "an advisory lock needs its own database session"),
        (
            {"cluster_ping_seconds": 20},
            r"\(80\), must not be over cluster_lease_seconds \(60\): a leader must stop beginning",
        ),
    ],
)
def test_election_by_lock_that_cannot_work_is_refused(given, reason):
    read_settings(**given)
    with pytest.raises(InvalidArgument, match=reason):
        read_settings(elector="advisory", **given)


def test_elector_that_is_not_known_is_refused():
    with pytest.raises(InvalidArgument, match="LEASEHOLD_ELECTOR: Input should be 'row' or"):
        read_settings(elector="zookeeper")
