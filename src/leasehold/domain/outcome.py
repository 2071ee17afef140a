"""What may become of one call. "We do not know" is one of the outcomes, not an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from leasehold.domain.intent import AttemptState

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import LeaseToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """It had its effect, once and for all."""

    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """It had no effect, and trying again would not change that."""

    reason: str | None = None
    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retryable:
    """It had no effect, and may be tried again: after `retry_after_seconds` where the gateway named
    a time, else by the contract's backoff. `is_saturated`: the gateway has no capacity for anybody.
    """

    retry_after_seconds: float | None = None
    is_saturated: bool = False
    reason: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nobody can tell whether it had its effect. The contract's guarantee decides what follows;
    `retry_after_seconds` counts only where the gateway may be called again.
    """

    retry_after_seconds: float | None = None
    reason: str | None = None
    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The gateway has it under `reference` and will know later: ask after a while."""

    reference: str
    ask_after_seconds: float
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The gateway, when asked, does not know the key: it had no effect so far."""

    detail: str | None = None


Outcome: TypeAlias = Accepted | Rejected | Retryable | Unknown | Submitted
# What a gateway may say when it is asked; Unknown: ask again later.
LookupAnswer: TypeAlias = Accepted | Rejected | Submitted | NotFound | Unknown


def attempt_state(outcome: Outcome) -> AttemptState:
    """Say what the ledger calls an outcome. FAILED may still come out of a Retryable: the database
    counts the attempts.
    """
    match outcome:
        case Accepted():
            return AttemptState.DISPATCHED
        case Rejected():
            return AttemptState.FAILED
        case Retryable():
            return AttemptState.RETRYABLE
        case Unknown():
            return AttemptState.IN_DOUBT
        case Submitted():
            return AttemptState.SUBMITTED
        case _:
            assert_never(outcome)


def next_look_seconds(outcome: Outcome) -> float | None:
    """Say after how long the intent is to be looked at again; None where it is finished, or where
    nobody has decided yet.
    """
    match outcome:
        case Accepted() | Rejected():
            return None
        case Retryable() | Unknown():
            return outcome.retry_after_seconds
        case Submitted():
            return outcome.ask_after_seconds
        case _:
            assert_never(outcome)


class Result(NamedTuple):
    """An outcome on its way to the ledger. Items have the token of their claim; under a lease there
    is none.
    """

    intent_id: IntentId
    outcome: Outcome
    lease_token: LeaseToken | None = None
    elapsed_seconds: float | None = None
