"""The permit of a call: what may begin its call, and what may only finish it."""

from __future__ import annotations

from leasehold.coordination.term import Term
from leasehold.domain.lease import Lease, TrustWindow
from leasehold.executor.item import Permit, claimed_items
from tests.support.claimed_item import NOW, claim_of

LEASE = Lease(name="a", holder_id="h", epoch=1, expires_at=NOW, grace_expires_at=NOW)


class Call:
    """An item under a leader's term, its permit and the time."""

    def __init__(self):
        self.now = 0.0
        self.term = Term(LEASE, trust=TrustWindow(60.0), start=TrustWindow(1.0))
        [self.item] = claimed_items([claim_of(1)], None, self.term, 60.0, 0.0)
        self.permit = Permit(self.item, lambda: self.now)


def test_call_that_may_not_begin_may_not_send_its_first_byte():
    call = Call()
    call.now = 1.0
    assert not call.permit()
    call.term.extend(call.now, NOW, TrustWindow(61.0), TrustWindow(2.0))
    assert call.permit(), "a renewal that comes late permits it"


def test_call_that_has_begun_may_send_until_trust_ends():
    call = Call()
    assert call.permit()
    call.term.close("a test")
    call.now = 59.9
    assert call.permit()
    call.now = 60.0
    assert not call.permit()


def test_call_whose_lease_is_lost_may_not_send_the_rest():
    call = Call()
    assert call.permit()
    call.item.lose()
    assert not call.permit()
