"""One intent on its way in: what no database could read, and what was answered.

The database judges intents. But a value of the wrong type ends the whole call and, inside a
caller's transaction, that transaction too: such values are found here, before they are sent.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, assert_never

from leasehold.domain.errors import IdempotencyConflict, InvalidArgument, UnknownTarget
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.store.postgres.arguments import intents_argument
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.domain.intent import IntentId, NewIntent

BATCH_MAX = 10_000  # in one call of enqueue_intents
# What a value raises that cannot even be read, or sent: nothing was written.
UNREADABLE = (InvalidArgument, TypeError, AttributeError, RecursionError)
# What PostgreSQL's smallint holds; which of these are priorities, the database says.
_PRIORITY_MAX = 32767
# A payload of 1 MiB can be written with at most six characters per byte.
_JSON_CHARACTERS_MAX = 6 * 1024 * 1024 + 1024
_TEXTS = ("target", "content_type", "idempotency_key", "key_scope", "stream", "trace_context")
_SECONDS = ("delay_seconds", "deadline_seconds")
_MOMENTS = ("due_at", "deadline_at")
_KINDS: dict[str, type] = {"body": bytes, "metadata": dict}
# As json.dumps writes it: an odd number of backslashes, then u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def problem_of(new: NewIntent) -> str | None:
    """Say why no database could even read this intent, or None; its sense is not judged here."""
    return (
        _problem_of_texts(new)
        or _problem_of_numbers(new)
        or _problem_of_moments(new)
        or _problem_of_content(new)
    )


class Asked:
    """Intents of one call: those that the database can read, and places for those it cannot."""

    def __init__(self, intents: Sequence[NewIntent]) -> None:
        self._problems = [problem_of(new) for new in intents]
        self.readable = [
            new for new, problem in zip(intents, self._problems, strict=True) if problem is None
        ]

    @property
    def has_problems(self) -> bool:
        """Whether some intent cannot be read."""
        return any(self._problems)

    def argument(self) -> str:
        """Write the argument of enqueue_intents."""
        return intents_argument(self.readable)

    def answered(self, answers: Iterable[Enqueued]) -> list[Enqueued]:
        """Put the database's answers, and a refusal for each of the rest, in the order of all."""
        waiting = iter(answers)
        return [
            next(waiting)._replace(ordinal=ordinal)
            if problem is None
            else Enqueued(
                ordinal=ordinal, verdict=EnqueueVerdict.INVALID, intent_id=None, problem=problem
            )
            for ordinal, problem in enumerate(self._problems, start=1)
        ]


def accepted_id(new: NewIntent, answer: Enqueued) -> IntentId:
    """Give the id of an accepted intent, or of the first of its key; raise for other verdicts."""
    match answer.verdict:
        case EnqueueVerdict.ACCEPTED | EnqueueVerdict.DUPLICATE:
            if answer.intent_id is None:
                raise AssertionError(f"the database gave no id with its verdict: {answer}")
            return answer.intent_id
        case EnqueueVerdict.CONFLICT:
            raise IdempotencyConflict(conflict_problem(new, answer), intent_id=answer.intent_id)
        case EnqueueVerdict.UNKNOWN_TARGET:
            raise UnknownTarget(
                f"{answer.problem}: publish one with `leasehold targets apply`", target=new.target
            )
        case EnqueueVerdict.INVALID:
            raise InvalidArgument(f"the intent was refused: {answer.problem}")
        case _:
            assert_never(answer.verdict)


def conflict_problem(new: NewIntent, answer: Enqueued) -> str:
    """Say whose the key is."""
    return (
        f"idempotency key {new.idempotency_key!r} of target {new.target!r} already stands for "
        f"intent {answer.intent_id} with another payload or target: use a new key for a new intent"
    )


def _problem_of_texts(new: NewIntent) -> str | None:
    for name in _TEXTS:
        value = getattr(new, name)
        if value is None and name != "target":
            continue
        if not isinstance(value, str):
            return f"{name} must be text"
        if not _is_storable(value):
            return f"{name} has a character that PostgreSQL cannot store (NUL, or half of a pair)"
    return None


def _problem_of_numbers(new: NewIntent) -> str | None:
    if new.priority is not None and not _is_small_integer(new.priority):
        return "priority must be from 0 (first) to 3 (last)"
    for name in _SECONDS:
        value = getattr(new, name)
        if value is not None and not _is_finite_number(value):
            return f"{name} must be a number of seconds"
    return None


def _problem_of_moments(new: NewIntent) -> str | None:
    for name in _MOMENTS:
        value = getattr(new, name)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            return f"{name} must be a datetime with a time zone"
    return None


def _problem_of_content(new: NewIntent) -> str | None:
    for name, kind in _KINDS.items():
        value = getattr(new, name)
        if value is not None and not isinstance(value, kind):
            return f"{name} must be {kind.__name__}"
    for name in ("payload", "metadata"):
        value = getattr(new, name)
        problem = None if value is None else _problem_of_json(value)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _problem_of_json(value: object) -> str | None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        return f"is no JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    if len(text) > _JSON_CHARACTERS_MAX:
        return "is over 1 MiB"
    if _NUL.search(text) or not _is_storable(text):
        return "has a character that PostgreSQL cannot store (NUL, or half of a pair)"
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
