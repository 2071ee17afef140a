"""Checks what the database cannot check, and turns its verdicts into ids and errors.

The database validates intents. But a value of the wrong type fails the whole call, and inside a
caller's transaction that transaction too. Such values are found before they are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from leasehold.domain.errors import (
    ContentTooLarge,
    IdempotencyConflict,
    InvalidArgument,
    UnknownTarget,
)
from leasehold.domain.intent_rules import find_faults, find_json_fault
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.domain.intent import IntentId, NewIntent

BATCH_MAX = 10_000  # in one call of enqueue_intents
# What a value raises that cannot be sent, or that the database cannot read. Nothing was written.
INVALID_VALUE = (InvalidArgument, TypeError, AttributeError, RecursionError)


def find_problem(new: NewIntent) -> str | None:
    """Return why an intent cannot be sent to the database; None if it can."""
    fault = next(iter(find_faults(new)), None) or find_json_fault(new)
    return None if fault is None else str(fault)


class CheckedBatch:
    """The intents of one call: those that can be sent, and the problems of the others."""

    def __init__(self, intents: Sequence[NewIntent]) -> None:
        self._problems = [find_problem(new) for new in intents]
        self.sendable = [
            new for new, problem in zip(intents, self._problems, strict=True) if problem is None
        ]

    @property
    def has_problems(self) -> bool:
        """Whether some intent cannot be sent."""
        return any(self._problems)

    def results(self, of_sendable: Iterable[Enqueued]) -> list[Enqueued]:
        """Merge the database's results with an INVALID for each of the others, in order."""
        remaining = iter(of_sendable)
        return [
            next(remaining)._replace(ordinal=ordinal)
            if problem is None
            else Enqueued(
                ordinal=ordinal, verdict=EnqueueVerdict.INVALID, intent_id=None, problem=problem
            )
            for ordinal, problem in enumerate(self._problems, start=1)
        ]


def accepted_id(new: NewIntent, result: Enqueued) -> IntentId:
    """Return the id of an accepted intent or of the first one with its key; otherwise raise."""
    match result.verdict:
        case EnqueueVerdict.ACCEPTED | EnqueueVerdict.DUPLICATE:
            if result.intent_id is None:
                raise AssertionError(f"the database returned no id: {result}")
            return result.intent_id
        case EnqueueVerdict.CONFLICT:
            raise IdempotencyConflict(conflict_problem(new, result), intent_id=result.intent_id)
        case EnqueueVerdict.UNKNOWN_TARGET:
            raise UnknownTarget(
                f"{result.problem}: publish one with `leasehold targets apply`", target=new.target
            )
        case EnqueueVerdict.TOO_LARGE:
            problem = result.problem or "its content is over the limit"
            raise ContentTooLarge.of(f"the intent is too large: {problem}", problem)
        case EnqueueVerdict.INVALID:
            raise InvalidArgument(f"the intent is invalid: {result.problem}")
        case _:
            assert_never(result.verdict)


def conflict_problem(new: NewIntent, result: Enqueued) -> str:
    """Return the message for a key that another intent has."""
    return (
        f"idempotency key {new.idempotency_key!r} of target {new.target!r} belongs to intent "
        f"{result.intent_id}, which has another {result.problem or 'payload'}: use a new key for a "
        "new intent"
    )
