"""Checks what the database cannot check, and turns its verdicts into ids and errors.

The database validates intents. But a value of the wrong type fails the whole call, and inside a
caller's transaction that transaction too. Such values are found here, before they are sent.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, assert_never

from leasehold.domain.errors import (
    ContentTooLarge,
    IdempotencyConflict,
    InvalidArgument,
    UnknownTarget,
)
from leasehold.domain.json_text import json_text
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.domain.intent import IntentId, NewIntent

BATCH_MAX = 10_000  # in one call of enqueue_intents
# What a value raises that cannot be sent, or that the database cannot read. Nothing was written.
INVALID_VALUE = (InvalidArgument, TypeError, AttributeError, RecursionError)
# The range of PostgreSQL's smallint. The database decides which of these are priorities.
_PRIORITY_MAX = 32767
# A payload of 1 MiB has at most six characters per byte as JSON text.
_JSON_CHARACTERS_MAX = 6 * 1024 * 1024 + 1024
_TEXT_FIELDS = ("target", "content_type", "idempotency_key", "key_scope", "stream", "trace_context")
_SECONDS_FIELDS = ("delay_seconds", "deadline_seconds")
_TIME_FIELDS = ("due_at", "deadline_at")
_FIELD_TYPES: dict[str, type] = {"body": bytes, "metadata": dict}
# NUL as JSON has it: an odd number of backslashes, then u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_UNSTORABLE = "contains a character that PostgreSQL cannot store (NUL or a lone surrogate)"


def find_problem(new: NewIntent) -> str | None:
    """Return why an intent cannot be sent to the database; None if it can."""
    return _text_problem(new) or _number_problem(new) or _time_problem(new) or _content_problem(new)


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


def _text_problem(new: NewIntent) -> str | None:
    for name in _TEXT_FIELDS:
        value = getattr(new, name)
        if value is None and name != "target":
            continue
        if not isinstance(value, str):
            return f"{name} must be text"
        if not _is_storable(value):
            return f"{name} {_UNSTORABLE}"
    return None


def _number_problem(new: NewIntent) -> str | None:
    if new.priority is not None and not _is_small_integer(new.priority):
        return "priority must be from 0 (first) to 3 (last)"
    for name in _SECONDS_FIELDS:
        value = getattr(new, name)
        if value is not None and not _is_finite_number(value):
            return f"{name} must be a number of seconds"
    return None


def _time_problem(new: NewIntent) -> str | None:
    for name in _TIME_FIELDS:
        value = getattr(new, name)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            return f"{name} must be a datetime with a time zone"
    return None


def _content_problem(new: NewIntent) -> str | None:
    for name, kind in _FIELD_TYPES.items():
        value = getattr(new, name)
        if value is not None and not isinstance(value, kind):
            return f"{name} must be {kind.__name__}"
    for name in ("payload", "metadata"):
        value = getattr(new, name)
        problem = None if value is None else _json_problem(value)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _json_problem(value: object) -> str | None:
    try:
        text = json_text(value, ascii_only=False)
    except InvalidArgument as error:
        return str(error)
    if len(text) > _JSON_CHARACTERS_MAX:
        return "is over 1 MiB"
    if _NUL.search(text) or not _is_storable(text):
        return _UNSTORABLE
    return None


def _is_storable(text: str) -> bool:
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def _is_small_integer(value: object) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return abs(value) <= _PRIORITY_MAX


def _is_finite_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
