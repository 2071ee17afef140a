"""What a worker holds, and how many of it there are."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from leasehold.coordination.claims import Claims
from leasehold.domain.intent import Claimed, IntentId
from leasehold.domain.lease import LeaseToken, TrustWindow

NOW = datetime(2031, 5, 4, 12, tzinfo=UTC)
TRUST = TrustWindow.counted_from(0.0, 30.0)


def claim_of(number, token):
    return Claimed(
        intent_id=IntentId(UUID(int=number)),
        lease_token=LeaseToken(UUID(int=token)),
        last_state=None,
        target="sms",
        contract_version=1,
        attempt_no=1,
        reference=None,
        priority=1,
        submission_key=UUID(int=number),
        payload=None,
        body=None,
        content_type=None,
        metadata=None,
        trace_context=None,
        stream=None,
        created_at=NOW,
        due_at=NOW,
        deadline_at=None,
        first_tried_at=NOW,
        claimed_at=NOW,
    )


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
