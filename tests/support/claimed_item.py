"""Builds a claimed item without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from leasehold.domain.intent import Claimed, IntentId
from leasehold.domain.lease import LeaseToken

NOW = datetime(2031, 5, 4, 12, tzinfo=UTC)


def claim_of(number: int, token: int = 1) -> Claimed:
    """Return a claim on its first attempt; everything else has a plain value."""
    return Claimed(
        intent_id=IntentId(UUID(int=number)),
        lease_token=LeaseToken(UUID(int=token)),
        last_state=None,
        target="sms",
        contract_version=1,
        attempt_no=1,
        reference=None,
        priority=1,
        stream=None,
        submission_key=UUID(int=number),
        fencing_token=1,
        payload=None,
        body=None,
        content_type=None,
        metadata=None,
        trace_context=None,
        created_at=NOW,
        due_at=NOW,
        deadline_at=None,
        first_tried_at=NOW,
        claimed_at=NOW,
    )
