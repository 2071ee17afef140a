"""Decides the next step of a claimed intent, and the delay before it. No clock, no randomness.

    claimed ─► next_step ─┬─ Submit ──────────► call ────► after_calling ─┐
                          ├─ LookUp, Confirm ─► lookup ──► after_lookup ──┼─► with_delay ─► ledger
                          └─ Finish, Hold ────────────────────────────────┘

The database has the last word: it counts attempts, checks deadlines and holds intents that a person
must decide. These decisions never resend what the database would not permit to be resent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, assert_never

from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)

if TYPE_CHECKING:
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import Claimed
    from leasehold.domain.outcome import LookupAnswer, Outcome

# The longest delay that the database accepts.
DELAY_SECONDS_MAX = 30 * 86_400.0
# The shortest delay of a deferred call, which spends no attempt: nothing else would slow it down.
DEFERRED_SECONDS_MIN = 1.0
# After this many seconds of lookups, the next one is a second later.
_LOOKUP_SLOWDOWN = 10.0
# More than any contract permits attempts, and small enough not to overflow a float.
_DOUBLINGS_MAX = 64

NOT_FOUND = "not_found_by_lookup"

_MAYBE_SENT = frozenset({AttemptState.IN_DOUBT, AttemptState.SUBMITTED})


@dataclass(frozen=True, slots=True)
class Submit:
    """Make the call, always with the same key; first mark it as begun if the contract says so."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look up the outcome of the key. The quarantine is over, so the answer is reliable."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Look up the outcome of what the gateway accepted as this reference."""

    reference: str | None


@dataclass(frozen=True, slots=True)
class Finish:
    """Record this outcome without a call."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Hold:
    """Record the intent as in doubt again, without a call.

    The database then holds it for a person, or makes it due after the quarantine. The database
    holds most such intents by itself, so they are never claimed. This one is for an intent whose
    key the gateway has forgotten while it waited.
    """

    outcome: Unknown


Step: TypeAlias = Submit | LookUp | Confirm | Finish | Hold


@dataclass(frozen=True, slots=True)
class LookUpAgain:
    """The lookup had no answer. Release the claim for this long; write nothing to the ledger."""

    seconds: float
    answer: Unknown


def next_step(claimed: Claimed, contract: Contract) -> Step:
    """Decide the next step of a claimed intent. All times are on the database's clock."""
    match claimed.last_state:
        case None:  # first, because it is the most common
            return _not_in_doubt(claimed, contract)
        case AttemptState.SUBMITTED if contract.can_look_up:
            return Confirm(claimed.reference)
        case AttemptState.IN_DOUBT | AttemptState.SUBMITTED:
            return _in_doubt(claimed, contract)
        case _:
            return _not_in_doubt(claimed, contract)


def after_calling(outcome: Outcome, claimed: Claimed, contract: Contract) -> Outcome:
    """Decide what the outcome of a call means for the intent.

    The gateway may ask for a delay, but not for a longer one than the contract allows.

    An intent stays in doubt after "busy, had no effect": that is about this call, and an earlier
    call may still have had its effect. If the doubt were dropped here, the intent could be resent
    after the gateway has forgotten the key, or end as exhausted although it had its effect. A
    deferred call changes nothing about the intent, so a doubt stays as it is.
    """
    outcome = _limit_delay(outcome, contract)
    if isinstance(outcome, Retryable) and _may_have_been_sent(claimed, contract):
        return Unknown(
            retry_after_seconds=outcome.retry_after_seconds,
            reason=outcome.reason,
            code=outcome.code,
            detail=outcome.detail,
        )
    return outcome


def after_lookup(
    answer: LookupAnswer, claimed: Claimed, contract: Contract
) -> Outcome | LookUpAgain:
    """Decide what the answer to LookUp or Confirm means for the intent."""
    match answer:
        case Accepted() | Rejected():
            return answer
        case Submitted():
            wait = max(answer.ask_after_seconds, _lookup_pause_seconds(claimed, contract))
            return _limit_delay(replace(answer, ask_after_seconds=wait), contract)
        case NotFound():
            return _not_found(answer, claimed, contract)
        case Unknown():
            wait = _next_lookup_seconds(answer, claimed, contract)
            if claimed.last_state is AttemptState.SUBMITTED and claimed.reference is not None:
                # As if nothing had changed: so the database ends the time for confirmation.
                return Submitted(reference=claimed.reference, ask_after_seconds=wait)
            return LookUpAgain(wait, answer)
        case _:
            assert_never(answer)


def with_delay(outcome: Outcome, contract: Contract, attempt_no: int, jitter: float) -> Outcome:
    """Set the delay of an outcome after which the intent is due again.

    It is what was asked for, at most 30 days, or else the contract's backoff; for a deferred call
    at least a second. `jitter` is a number from -1 to 1.
    """
    match outcome:
        case Accepted() | Rejected():
            return outcome
        case Retryable() | Unknown() | Deferred():
            asked = _bounded(outcome.retry_after_seconds)
            delay = backoff_seconds(contract, attempt_no, jitter) if asked is None else asked
            if isinstance(outcome, Deferred):
                delay = max(delay, DEFERRED_SECONDS_MIN)
            return replace(outcome, retry_after_seconds=delay)
        case Submitted():
            asked = _bounded(outcome.ask_after_seconds)
            delay = backoff_seconds(contract, attempt_no, jitter) if asked is None else asked
            return replace(outcome, ask_after_seconds=delay)
        case _:
            assert_never(outcome)


def backoff_seconds(contract: Contract, attempt_no: int, jitter: float) -> float:
    """Return the contract's exponential backoff after an attempt (the first is 1).

    `jitter` spreads it, so that intents that failed together are not retried together.
    """
    if not -1 <= jitter <= 1:
        raise ValueError(f"jitter ({jitter}) must be from -1 to 1")
    retry = contract.retry
    doublings = min(max(attempt_no, 1) - 1, _DOUBLINGS_MAX)
    wait = min(retry.first_seconds * retry.factor**doublings, retry.longest_seconds)
    return min(wait * (1 + retry.jitter * jitter), DELAY_SECONDS_MAX)


def _not_in_doubt(claimed: Claimed, contract: Contract) -> Step:
    if claimed.deadline_at is not None and claimed.claimed_at >= claimed.deadline_at:
        return Finish(Rejected(reason="deadline_exceeded"))
    if _may_have_been_sent(claimed, contract) and not _knows_the_key(claimed, contract):
        return _postpone(claimed, contract)
    return Submit()


def _in_doubt(claimed: Claimed, contract: Contract) -> Step:
    match contract.guarantee:
        case "fenced":
            return Submit()
        case "keyed":
            return (
                Submit() if _knows_the_key(claimed, contract) else _key_forgotten(claimed, contract)
            )
        case "lookup":
            return LookUp()
        case "blind":
            return Hold(Unknown(retry_after_seconds=0, reason="cannot_be_asked"))
        case _:
            assert_never(contract.guarantee)


def _key_forgotten(claimed: Claimed, contract: Contract) -> Step:
    """Past the key window, do as with guarantee lookup: wait out the quarantine, then ask.

    If the intent came in doubt past the window, the database has already waited for the quarantine.
    If it came in doubt inside the window, it is due after its backoff alone, so it is postponed
    once more. Its age tells which: in the first case it exceeds window plus quarantine.
    """
    age_seconds = _age_seconds(claimed)
    window_seconds = contract.key_window_seconds or 0
    if contract.can_look_up and age_seconds >= window_seconds + contract.quarantine_seconds:
        return LookUp()
    return _postpone(claimed, contract)


def _postpone(claimed: Claimed, contract: Contract) -> Hold:
    """Wait until the window is over for the database too, which then quarantines or holds it."""
    seconds = max(0.0, (contract.key_window_seconds or 0) - _age_seconds(claimed))
    return Hold(Unknown(retry_after_seconds=seconds, reason="key_window_over"))


def _knows_the_key(claimed: Claimed, contract: Contract) -> bool:
    """Whether the gateway will know the key during the whole lease of this claim."""
    if contract.key_window_seconds is None:
        return True
    return _age_seconds(claimed) + contract.lease_seconds <= contract.key_window_seconds


def _age_seconds(claimed: Claimed) -> float:
    return (claimed.claimed_at - claimed.first_tried_at).total_seconds()


def _may_have_been_sent(claimed: Claimed, contract: Contract) -> bool:
    """Whether an earlier call may have had its effect.

    A dead holder that did not have to mark its calls as begun may have sent one.
    """
    if claimed.last_state is None:
        return False
    if claimed.last_state is AttemptState.ZOMBIE_REQUEUE:
        return contract.guarantee == "keyed" and not contract.must_begin
    return claimed.last_state in _MAYBE_SENT


def _not_found(answer: NotFound, claimed: Claimed, contract: Contract) -> Outcome:
    """The gateway does not know the key. After the quarantine that is certain, so resend.

    If the gateway had accepted it as a reference, there was no quarantine before this question. So
    it is in doubt again, unless resending is harmless.
    """
    is_harmless = contract.guarantee == "fenced" or (
        contract.guarantee == "keyed" and _knows_the_key(claimed, contract)
    )
    if claimed.last_state is AttemptState.SUBMITTED and not is_harmless:
        return Unknown(retry_after_seconds=0, reason=NOT_FOUND, detail=answer.detail)
    return Retryable(retry_after_seconds=0, reason=NOT_FOUND, detail=answer.detail)


def _next_lookup_seconds(answer: Unknown, claimed: Claimed, contract: Contract) -> float:
    asked = _bounded(answer.retry_after_seconds) or 0.0
    asked = min(asked, contract.retry.retry_after_seconds_max)
    wait = max(asked, backoff_seconds(contract, claimed.attempt_no, 0))
    wait = max(wait, _lookup_pause_seconds(claimed, contract))
    if claimed.last_state is AttemptState.SUBMITTED:
        return wait
    return max(wait, contract.quarantine_seconds)


def _lookup_pause_seconds(claimed: Claimed, contract: Contract) -> float:
    """Return how long to wait before the next lookup: the longer, the longer it has taken."""
    return min(_age_seconds(claimed) / _LOOKUP_SLOWDOWN, contract.retry.longest_seconds)


def _limit_delay(outcome: Outcome, contract: Contract) -> Outcome:
    """Limit the delay that a gateway asked for to what the contract allows."""
    longest = contract.retry.retry_after_seconds_max
    match outcome:
        case Retryable() | Unknown() | Deferred():
            asked = outcome.retry_after_seconds
            if asked is not None and asked > longest:
                return replace(outcome, retry_after_seconds=longest)
        case Submitted() if outcome.ask_after_seconds > longest:
            return replace(outcome, ask_after_seconds=longest)
        case _:
            pass
    return outcome


def _bounded(seconds: float | None) -> float | None:
    """Limit a delay to the bounds of the database; None if it is not a number."""
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), DELAY_SECONDS_MAX)
