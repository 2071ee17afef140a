"""Trust in a lease ends before the lease does."""

from __future__ import annotations

import pytest

from leasehold.domain.lease import TrustWindow


def test_trust_is_counted_from_before_the_renewal_was_sent():
    sent_at, answered_at, lease_seconds = 1000.0, 1004.0, 30.0
    trust = TrustWindow.counted_from(sent_at, lease_seconds)
    # The database granted the lease between the two readings, so it expires after this.
    assert trust.ends_at < sent_at + lease_seconds
    assert trust.seconds_left(answered_at) < lease_seconds - 4


def test_holder_with_a_slow_clock_stops_before_its_lease_expires():
    lease_seconds = 3600.0
    trust = TrustWindow.counted_from(0.0, lease_seconds)
    slow = 1 - 0.001  # seconds of our clock per second of the database's
    assert trust.is_over(lease_seconds * slow)


@pytest.mark.parametrize(("now", "is_over"), [(0.0, False), (9.89, False), (9.9, True), (50, True)])
def test_trust_is_over_at_its_end(now, is_over):
    assert TrustWindow.counted_from(0.0, 10.0).is_over(now) is is_over


def test_seconds_left_is_never_negative():
    assert TrustWindow(5.0).seconds_left(7.0) == 0
    assert TrustWindow(5.0).seconds_left(4.0) == 1
