"""Trust in a lease ends before the lease does."""

from __future__ import annotations

import pytest

from leasehold.domain.lease import TrustWindow


def test_trust_is_counted_from_before_the_renewal_was_sent():
    asked_at, answered_at, lease_seconds = 1000.0, 1004.0, 30.0
    trust = TrustWindow.counted_from(asked_at, lease_seconds)
    # The database granted the lease somewhere between the two, so it cannot end before this.
    assert trust.ends_at < asked_at + lease_seconds
    assert trust.seconds_left(answered_at) < lease_seconds - 4


def test_holder_whose_clock_runs_slow_still_stops_before_the_database_lets_others_in():
    lease_seconds = 3600.0
    trust = TrustWindow.counted_from(0.0, lease_seconds)
    slow = 1 - 0.001  # our seconds for each of the database's
    assert trust.is_over(lease_seconds * slow)


@pytest.mark.parametrize(("now", "is_over"), [(0.0, False), (9.89, False), (9.9, True), (50, True)])
def test_trust_is_over_at_its_end_not_after_it(now, is_over):
    assert TrustWindow.counted_from(0.0, 10.0).is_over(now) is is_over


def test_trust_that_is_over_has_no_time_left_rather_than_less():
    assert TrustWindow(5.0).seconds_left(7.0) == 0
    assert TrustWindow(5.0).seconds_left(4.0) == 1


def test_call_that_would_end_outside_is_not_covered():
    trust = TrustWindow(10.0)
    assert trust.covers(now=4.0, seconds=5.0)
    assert not trust.covers(now=5.0, seconds=5.0)
    assert not trust.covers(now=11.0, seconds=0.0)
