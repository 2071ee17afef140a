"""The outcomes of a gateway call. "Unknown" is an outcome, not an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from leasehold.domain.intent import AttemptState

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import LeaseToken

# What the database calls an outcome that is not written to the ledger.
DEFERRED = "DEFERRED"
# The reason of an outcome if the gateway has seen a newer fencing token for the key.
STALE_REASON = "stale_fencing_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The call had its effect."""

    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The call had no effect, and a retry would not help."""

    reason: str | None = None
    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retryable:
    """The call had no effect and may be retried.

    It is retried after `retry_after_seconds`, or by the contract's backoff if the gateway gave no
    time. `is_saturated` means that the gateway has no capacity for any call now.
    """

    retry_after_seconds: float | None = None
    is_saturated: bool = False
    reason: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """It is unknown whether the call had its effect. The contract's guarantee decides what follows.

    `retry_after_seconds` only matters if the guarantee permits another call.
    """

    retry_after_seconds: float | None = None
    reason: str | None = None
    reference: str | None = None
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The gateway accepted the call as `reference` and will confirm it later: look it up then."""

    reference: str
    ask_after_seconds: float
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """The call had certainly no effect, and says nothing about the intent.

    For what is wrong with the way, not with the intent: a target that refuses our credentials, a
    balance that is too low. It spends no attempt and writes no ledger row, so only the intent's
    deadline ends it. It is called again after `retry_after_seconds`, or by the contract's backoff
    if the gateway gave no time. `is_target_wide` means that no call to the target would fare better
    now: its breaker opens.
    """

    reason: str
    retry_after_seconds: float | None = None
    is_target_wide: bool = False
    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The answer to a lookup: the gateway does not know the key, so there is no effect so far."""

    detail: str | None = None


Outcome: TypeAlias = Accepted | Rejected | Retryable | Unknown | Submitted | Deferred
# The answers to a lookup. Unknown means: ask again later.
LookupAnswer: TypeAlias = Accepted | Rejected | Submitted | NotFound | Unknown


def attempt_state(outcome: Outcome) -> AttemptState | None:
    """Return the ledger state of an outcome; None if it is not written there.

    The database may turn RETRYABLE into FAILED, because it counts the attempts.
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
        case Deferred():
            return None
        case _:
            assert_never(outcome)


def next_look_seconds(outcome: Outcome) -> float | None:
    """Return the delay until the intent is due again; None if it is finished or undecided."""
    match outcome:
        case Accepted() | Rejected():
            return None
        case Retryable() | Unknown() | Deferred():
            return outcome.retry_after_seconds
        case Submitted():
            return outcome.ask_after_seconds
        case _:
            assert_never(outcome)


class Result(NamedTuple):
    """An outcome to be written to the ledger. `lease_token` is set for claims only.

    `attempt_no` is set if the outcome is not of a call but of a question, or was decided without
    one. It counts only while that attempt is the next one on the ledger.
    """

    intent_id: IntentId
    outcome: Outcome
    lease_token: LeaseToken | None = None
    elapsed_seconds: float | None = None
    attempt_no: int | None = None


class Deferral(NamedTuple):
    """An item without an outcome, to be due again later. `attempt_no` is as in Result."""

    intent_id: IntentId
    seconds: float
    attempt_no: int | None = None
