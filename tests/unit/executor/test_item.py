"""An item: how it may change its state, and what may begin its call or only finish it."""

from __future__ import annotations

import pytest

from leasehold.coordination.term import Term
from leasehold.domain.lease import Lease, TrustWindow
from leasehold.domain.outcome import Accepted
from leasehold.executor.item import (
    IllegalTransition,
    Item,
    ItemState,
    Permit,
    Transitions,
    claimed_items,
)
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


# Of each transition: from which states it is drawn, and what it is called with.
TRANSITIONS = {
    "become_due": ({ItemState.WAITING}, ()),
    "take": ({ItemState.READY}, ()),
    "leave_unmarked": ({ItemState.MARKED}, (0.0,)),
    "call": ({ItemState.MARKED, ItemState.CALLING}, ()),
    "finish": ({ItemState.CALLING}, (Accepted(), None)),
    "give_back": ({ItemState.MARKED, ItemState.CALLING}, (0.0,)),
    "put_back": ({ItemState.CALLING}, ()),
    "end": (set(ItemState) - {ItemState.DONE}, ()),
}


@pytest.mark.parametrize("state", ItemState)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_transition_that_is_not_drawn_raises_and_changes_nothing(name, state):
    drawn, arguments = TRANSITIONS[name]
    item = Item(1, "sms", None, TrustWindow(60.0), state)
    if state in drawn:
        getattr(item, name)(*arguments)
        assert item.state >= state
        return
    with pytest.raises(IllegalTransition):
        getattr(item, name)(*arguments)
    assert (item.state, item.outcome, item.given_back_until) == (state, None, None)


def test_transition_that_is_not_drawn_leaves_the_item_to_repair_in_production(monkeypatch, caplog):
    monkeypatch.setattr(Transitions, "are_strict", False)
    [item] = claimed_items([claim_of(1)], None, TrustWindow(60.0), 60.0, 0.0)
    assert not item.finish(Accepted(), None)
    assert (item.state, item.outcome) == (ItemState.MARKED, None)
    assert item.trust.is_over(0.0), "nothing may be sent or written for it any more"
    [line] = caplog.messages
    assert "transition_refused" in line
