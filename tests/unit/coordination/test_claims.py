"""What a worker holds, and how many of it there are."""

from __future__ import annotations

from leasehold.coordination.claims import Claims
from leasehold.domain.lease import TrustWindow
from tests.support.claimed_item import claim_of

TRUST = TrustWindow.counted_from(0.0, 30.0)


def taken(claims, number, token):
    [held] = claims.take([claim_of(number, token)], TRUST, 30.0, 0.0)
    return held


def test_claim_that_is_ours_again_before_the_old_one_is_let_go_takes_one_slot():
    claims = Claims("worker-1", 10)
    given_back = taken(claims, 7, token=1)
    again = taken(claims, 7, token=2)
    claims.let_go([given_back])
    assert (claims.in_flight("sms"), claims.free_slots) == (1, 9)
    claims.let_go([again])
    assert (claims.in_flight("sms"), claims.free_slots) == (0, 10)


def test_whoever_waits_for_slots_is_told_which_intents_made_them_free():
    claims, told = Claims("worker-1", 10), []
    claims.on_free(told.append)
    given_back = taken(claims, 7, token=1)
    again = taken(claims, 7, token=2)
    other = taken(claims, 8, token=3)
    claims.let_go([given_back, other])  # 7 is ours again
    claims.let_go([again, other])
    assert told == [[8], [7]]
