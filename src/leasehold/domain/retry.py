"""What to do next with a claimed intent, and after how long. Decisions only: nothing here awaits,
reads a clock or rolls dice.

    claimed ─► next_step ─┬─ Submit ──────► the call ──► after_calling ─┐
                          ├─ Ask, Confirm ► the lookup ► after_asking ──┼─► with_delay ─► the ledger
                          └─ Finish, Hold ──────────────────────────────┘

The database has the last word: it counts attempts, compares deadlines and holds what nobody may
guess. These decisions never resend what it would not let be resent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, assert_never

from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import (
    Accepted,
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

# The longest wait that the database takes; a gateway that asks for more is asked again then.
DELAY_SECONDS_MAX = 30 * 86_400.0
# More doublings than any contract allows attempts, few enough to stay a number.
_DOUBLINGS_MAX = 64

NOT_FOUND = "not_found_by_lookup"

_SENT_MAYBE = frozenset({AttemptState.IN_DOUBT, AttemptState.SUBMITTED})


@dataclass(frozen=True, slots=True)
class Submit:
    """Make the call, with the same key as ever; begin it first where the contract asks for that."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the gateway what became of the key. The quarantine is over: its answer counts."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ask the gateway what became of what it accepted under this reference."""

    reference: str | None


@dataclass(frozen=True, slots=True)
class Finish:
    """Record this without a call."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Hold:
    """Record the doubt once more, without a call: the database then holds the intent for a person,
    or has it asked about when the quarantine is over.

    The database holds most such intents itself, so they are never claimed. This is for what became
    impossible while the intent waited: the gateway has forgotten the key in the meantime.
    """

    outcome: Unknown


Step: TypeAlias = Submit | Ask | Confirm | Finish | Hold


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The gateway could not say. Give the claim back for so long: nothing was learnt, so there is
    nothing to write on the ledger.
    """

    seconds: float
    answer: Unknown


def next_step(claimed: Claimed, contract: Contract) -> Step:
    """Say what to do with a claimed intent. All times are the database's."""
    match claimed.last_state:
        case None:  # as most are; each look at a state by its name costs
            return _not_in_doubt(claimed, contract)
        case AttemptState.SUBMITTED if contract.can_look_up:
            return Confirm(claimed.reference)
        case AttemptState.IN_DOUBT | AttemptState.SUBMITTED:
            return _in_doubt(claimed, contract)
        case _:
            return _not_in_doubt(claimed, contract)


def after_calling(outcome: Outcome, claimed: Claimed, contract: Contract) -> Outcome:
    """Say what a call's outcome means for the intent.

    A doubt outlives an answer about another call: "busy, had no effect" is said of this call, and
    the one before may still have had its effect. Were it forgotten here, it would be sent again
    when the gateway no longer knows the key, or end as exhausted as if nothing had happened.
    """
    if isinstance(outcome, Retryable) and _may_have_been_sent(claimed, contract):
        return Unknown(
            retry_after_seconds=outcome.retry_after_seconds,
            reason=outcome.reason,
            code=outcome.code,
            detail=outcome.detail,
        )
    return outcome


def after_asking(answer: LookupAnswer, claimed: Claimed, contract: Contract) -> Outcome | AskAgain:
    """Say what the gateway's answer to Ask or Confirm means for the intent."""
    match answer:
        case Accepted() | Rejected() | Submitted():
            return answer
        case NotFound():
            return _not_found(answer, claimed, contract)
        case Unknown():
            return AskAgain(_ask_again_seconds(answer, claimed, contract), answer)
        case _:
            assert_never(answer)


def with_delay(outcome: Outcome, contract: Contract, attempt_no: int, jitter: float) -> Outcome:
    """Give an outcome that leads to another look its delay: what the gateway asked for, up to 30
    days and never less; else the contract's backoff. `jitter` is a number from -1 to 1.
    """
    match outcome:
        case Accepted() | Rejected():
            return outcome
        case Retryable() | Unknown():
            asked = _bounded(outcome.retry_after_seconds)
            delay = backoff_seconds(contract, attempt_no, jitter) if asked is None else asked
            return replace(outcome, retry_after_seconds=delay)
        case Submitted():
            asked = _bounded(outcome.ask_after_seconds)
            delay = backoff_seconds(contract, attempt_no, jitter) if asked is None else asked
            return replace(outcome, ask_after_seconds=delay)
        case _:
            assert_never(outcome)


def backoff_seconds(contract: Contract, attempt_no: int, jitter: float) -> float:
    """Wait longer after each attempt (the first is 1), up to the contract's longest; spread by
    `jitter`, so that what failed together does not come back together.
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
        return _put_off(claimed, contract)
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
            return Ask()
        case "blind":
            return Hold(Unknown(retry_after_seconds=0, reason="cannot_be_asked"))
        case _:
            assert_never(contract.guarantee)


def _key_forgotten(claimed: Claimed, contract: Contract) -> Step:
    """Past the key window it is as with lookup: the quarantine, then the question.

    The database waits for the quarantine when the doubt arises past the window. One that arose
    inside was due again after its backoff alone, so it is put off once more. Which of the two it is
    shows in the time: one that arose past the window comes back later than window and quarantine.
    """
    age_seconds = _age_seconds(claimed)
    window_seconds = contract.key_window_seconds or 0
    if contract.can_look_up and age_seconds >= window_seconds + contract.quarantine_seconds:
        return Ask()
    return _put_off(claimed, contract)


def _put_off(claimed: Claimed, contract: Contract) -> Hold:
    """Hold until the window is over for the database too: it then sets the quarantine, or holds."""
    seconds = max(0.0, (contract.key_window_seconds or 0) - _age_seconds(claimed))
    return Hold(Unknown(retry_after_seconds=seconds, reason="key_window_over"))


def _knows_the_key(claimed: Claimed, contract: Contract) -> bool:
    """Whether the gateway will still know the key when a call under this claim reaches it: at any
    moment of its lease.
    """
    if contract.key_window_seconds is None:
        return True
    return _age_seconds(claimed) + contract.lease_seconds <= contract.key_window_seconds


def _age_seconds(claimed: Claimed) -> float:
    return (claimed.claimed_at - claimed.first_tried_at).total_seconds()


def _may_have_been_sent(claimed: Claimed, contract: Contract) -> bool:
    """Whether an earlier call may have had its effect. Without the mark "about to call", a holder
    that fell silent may have sent just as well as not.
    """
    if claimed.last_state is None:
        return False
    if claimed.last_state is AttemptState.ZOMBIE_REQUEUE:
        return contract.guarantee == "keyed" and not contract.must_begin
    return claimed.last_state in _SENT_MAYBE


def _not_found(answer: NotFound, claimed: Claimed, contract: Contract) -> Outcome:
    """The gateway does not know the key: after the quarantine, that is certain, and it is sent.

    What it had accepted under a reference and now does not know is a new doubt, since nobody waited
    before asking; only where sending again is harmless is it sent at once.
    """
    is_harmless = contract.guarantee == "fenced" or (
        contract.guarantee == "keyed" and _knows_the_key(claimed, contract)
    )
    if claimed.last_state is AttemptState.SUBMITTED and not is_harmless:
        return Unknown(retry_after_seconds=0, reason=NOT_FOUND, detail=answer.detail)
    return Retryable(retry_after_seconds=0, reason=NOT_FOUND, detail=answer.detail)


def _ask_again_seconds(answer: Unknown, claimed: Claimed, contract: Contract) -> float:
    asked = _bounded(answer.retry_after_seconds) or 0.0
    wait = max(asked, backoff_seconds(contract, claimed.attempt_no, 0))
    if claimed.last_state is AttemptState.SUBMITTED:
        return wait
    return max(wait, contract.quarantine_seconds)


def _bounded(seconds: float | None) -> float | None:
    """Bring what a gateway asked for into the bounds of the database; None where it is no time."""
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), DELAY_SECONDS_MAX)
