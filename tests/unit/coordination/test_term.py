"""A term ends before its lease, and begins nothing while it is closing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from leasehold.coordination.term import Term
from leasehold.domain.lease import Lease, TrustWindow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE = Lease(name="a", holder_id="h", epoch=1, expires_at=NOON, grace_expires_at=NOON)


def test_calls_may_finish_for_longer_than_new_calls_may_begin():
    term = Term(LEASE, trust=TrustWindow(60.0), start=TrustWindow(1.0))
    assert term.may_start(0.9)
    assert not term.may_start(1.0)
    assert not term.is_over(59.0)
    assert term.may_start_later(1.0)
    assert term.extend(1.0, NOON + timedelta(minutes=1), TrustWindow(61.0), TrustWindow(2.0))
    assert term.may_start(1.9), "a renewal that comes late lets it go on"
    assert (term.lease.epoch, term.lease.expires_at) == (1, NOON + timedelta(minutes=1))
    term.end("a test")
    assert not term.may_start(1.9)


def test_closing_term_begins_no_calls_but_lets_calls_finish():
    term = Term(LEASE, TrustWindow(60.0))
    term.close("a test")
    assert not term.may_start(0.0)
    assert not term.may_start_later(0.0)
    assert not term.is_over(0.0)


def test_row_lease_may_begin_calls_as_long_as_it_is_trusted():
    term = Term(LEASE, TrustWindow(60.0))
    assert term.may_start(59.9)
    assert not term.may_start(60.0)


def test_late_answer_to_a_renewal_does_not_revive_a_term():
    term = Term(LEASE, TrustWindow(60.0))
    assert not term.extend(60.0, NOON + timedelta(minutes=1), TrustWindow(80.0), TrustWindow(80.0))
    assert term.is_over(60.0)
    assert not term.may_start(60.0)
    assert term.lease.expires_at == NOON
