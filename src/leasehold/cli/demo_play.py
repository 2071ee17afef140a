"""The play of `leasehold demo`: sample intents walk through the store, each to another end.

Two workers act. One answers for whatever it claims; the other claims under a lease of one second
and falls silent, so that its lease really runs out. Nothing is forced: every row on the ledger was
written by the functions that a real instance calls.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from leasehold.domain.errors import LeaseholdError
from leasehold.domain.intent import AttemptState, NewIntent
from leasehold.domain.outcome import (
    Accepted,
    Rejected,
    Result,
    Retryable,
    Submitted,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.domain.outcome import Outcome
    from leasehold.store.protocol import Store

WORKER, SILENT_WORKER, OPERATOR = "worker-1", "worker-2", "operator"
CONTRACTS: Mapping[str, Mapping[str, str]] = {
    "sms": {"scope": "item", "guarantee": "keyed"},
    "payments": {"scope": "item", "guarantee": "lookup"},
    "letters": {"scope": "item", "guarantee": "blind"},
}
# For the silent worker; then for the one that answers.
ABANDONED = {"zombie": "sms", "in doubt": "payments"}
ANSWERED = {
    "accepted": "sms",
    "retried": "sms",
    "rejected": "sms",
    "confirming": "payments",
    "held": "letters",
}
_BATCH = 100
_SHORT_LEASE_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Played:
    """The sample intents by what was to become of them."""

    story_of: Mapping[IntentId, str]


async def play(store: Store, say: Callable[[str], None]) -> Played:
    """Publish, enqueue, claim, begin, complete, fall silent, repair, cancel."""
    for target, terms in CONTRACTS.items():
        await store.publish_contract(target, terms, OPERATOR)
    say(f"published contracts: {', '.join(CONTRACTS)}")
    run = uuid4().hex[:8]  # keys of an earlier run on this folder stand for its own intents

    await _answer_all(store)  # what an earlier run left behind
    abandoned = await _enqueue(store, run, ABANDONED)
    await _fall_silent(store)
    say(f"{SILENT_WORKER} claimed under a lease of {_SHORT_LEASE_SECONDS:g} s and fell silent")

    answered = await _enqueue(store, run, ANSWERED)
    cancelled = await _enqueue(store, run, {"cancelled": "letters"}, delay_seconds=3600)
    for intent_id in cancelled:
        await store.cancel_intent(intent_id, OPERATOR, "sent by hand instead")
    await _answer_until_settled(store, list(answered))
    say(f"{WORKER} answered for {len(answered)} intents")

    await _repair(store, list(abandoned), say)
    await _answer_until_settled(store, list(abandoned))
    return Played(answered | abandoned | cancelled)


async def _enqueue(
    store: Store, run: str, stories: Mapping[str, str], delay_seconds: float | None = None
) -> dict[IntentId, str]:
    given = [
        NewIntent(
            target=target,
            payload={"story": story},
            idempotency_key=f"{run}/{story}",
            delay_seconds=delay_seconds,
        )
        for story, target in stories.items()
    ]
    answers = await store.enqueue_intents(given)
    accepted = {
        answer.intent_id: story
        for answer, story in zip(answers, stories, strict=True)
        if answer.intent_id is not None
    }
    if len(accepted) < len(given):
        raise LeaseholdError(f"the database refused sample intents: {answers}")
    return accepted


async def _fall_silent(store: Store) -> None:
    """Claim everything; begin the calls of which nobody will know how they ended."""
    claimed = await store.claim_outbox_batch(
        _BATCH, SILENT_WORKER, _SHORT_LEASE_SECONDS, list(CONTRACTS)
    )
    begun = [one.claim for one in claimed if _story(one) == "in doubt"]
    await store.begin_outbox_attempts(SILENT_WORKER, begun)


async def _repair(store: Store, intent_ids: Sequence[IntentId], say: Callable[[str], None]) -> None:
    """Wait for the silent worker's leases to run out, and end its claims."""
    waiting = set(intent_ids)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while waiting and time.monotonic() < deadline:
        for repaired in await store.repair_expired_leases(_BATCH, WORKER):
            say(f"repair wrote {repaired.state} for a claim of {repaired.replaced_holder}")
        tried = await store.read_ledger(list(waiting))
        waiting -= {attempt.intent_id for attempt in tried}
        await asyncio.sleep(_POLL_SECONDS)


async def _answer_until_settled(store: Store, intent_ids: Sequence[IntentId]) -> None:
    """Answer until each of these is finished, or waits for something that is not a call of ours."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        await _answer_all(store)
        statuses = await store.read_status(intent_ids)
        if all(one.status != "pending" for one in statuses):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _answer_all(store: Store) -> None:
    """Claim what is due and say what became of it."""
    claimed = await store.claim_outbox_batch(_BATCH, WORKER, 30, list(CONTRACTS))
    if not claimed:
        return
    # Only for what is really called: the others are asked about.
    await store.begin_outbox_attempts(WORKER, [one.claim for one in claimed if _is_call(one)])
    results = [
        Result(intent_id=one.intent_id, claim=one.claim, outcome=_answer(one)) for one in claimed
    ]
    await store.complete_outbox_attempts(WORKER, results)


def _answer(claimed: Claimed) -> Outcome:
    """Play the gateway."""
    if not _is_call(claimed):
        return Accepted(reference=claimed.reference, detail="asked: it had gone through")
    match _story(claimed):
        case "retried" if claimed.attempt_no == 1:
            return Retryable(retry_after_seconds=0.2, reason="busy", code="503")
        case "rejected":
            return Rejected(reason="no such number", code="422")
        case "confirming":
            return Submitted(reference=f"pay-{claimed.intent_id.hex[-6:]}", ask_after_seconds=60)
        case "held":
            return Unknown(
                retry_after_seconds=0.0,
                reason="timeout",
                detail="the line went dead after the call",
            )
        case _:
            return Accepted(reference=f"ok-{claimed.intent_id.hex[-6:]}", code="200")


def _is_call(claimed: Claimed) -> bool:
    return claimed.last_state not in {AttemptState.IN_DOUBT, AttemptState.SUBMITTED}


def _story(claimed: Claimed) -> str:
    value: dict[str, str] = claimed.payload.value() if claimed.payload else {}
    return value.get("story", "")
