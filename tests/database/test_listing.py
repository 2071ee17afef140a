"""Intents are found newest first, by looking at no more of them than a call may."""

from __future__ import annotations

import pytest

from leasehold.domain.intent import Status
from leasehold.store.postgres.listing import find_intents


@pytest.fixture
def rejected(outbox):
    outbox.publish("sms")
    [intent_id] = outbox.enqueue(1, idempotency_key="k")
    outbox.complete(outbox.claim(), "FAILED", reason="no such number")
    return intent_id


async def test_list_of_what_is_rare_looks_at_a_bounded_window_and_says_how_far(
    stores, outbox, rejected
):
    newer = sorted(outbox.enqueue(7))
    calls = stores.readonly._calls
    rare = Status.REJECTED, None
    first = await find_intents(calls, *rare, None, 50, window=5)
    assert first == ([], newer[2])
    second = await find_intents(calls, *rare, newer[2], 50, window=5)
    assert second == ([rejected], None)


async def test_window_that_ends_with_the_last_intent_still_says_how_far(stores, outbox):
    outbox.publish("sms")
    ids = sorted(outbox.enqueue(5))  # inside a millisecond their order is chance
    found = await find_intents(stores.readonly._calls, None, None, None, 50, window=5)
    assert found == (ids[::-1], ids[0])
