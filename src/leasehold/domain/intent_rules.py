"""The rules of a new intent, for the client, the API and the library.

`intent_problem.sql` has the same rules in the same words, and decides what depends on its clock or
on its contracts. A message continues the name of its field: "priority must be from 0 ...".
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import PRIORITIES, JsonDocument, NewIntent
from leasehold.domain.json_text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TEN_YEARS_SECONDS = 315_360_000
# Intent ids count from here.
FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
# Python cannot read back the year 10000, and in some time zones it begins on this day.
LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC)

IS_REQUIRED = "is required"
NO_MOMENT = "must be a time with its time zone, such as 2030-01-31T12:00:00Z"
_TOO_EARLY = "must be after now and after the intent is due"
_NAME = "must be 1 to 255 characters without control characters"
# What each field must be, whatever else is given.
RULES: Mapping[str, str] = {
    "target": "must be 1 to 64 characters without control characters",
    "content_type": _NAME,
    "idempotency_key": _NAME,
    "key_scope": "must be target or all",
    "stream": _NAME,
    "priority": "must be from 0 (first) to 3 (last)",
    "due_at": "must be after 1970 and within ten years",
    "delay_seconds": f"must be from 0 to {TEN_YEARS_SECONDS} (ten years)",
    "deadline_at": "must be after 1970 and before 9999-12-31",
    "deadline_seconds": f"must be above 0 and at most {TEN_YEARS_SECONDS} (ten years)",
    "body": "must be bytes",
    "metadata": "must be an object",
    "trace_context": "must be up to 512 characters without control characters",
}
_UNSTORABLE = "contains a character that PostgreSQL cannot store (NUL or a lone surrogate)"
_EITHER = (("due_at", "delay_seconds"), ("deadline_at", "deadline_seconds"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# NUL as JSON has it: an odd number of backslashes, then u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# A payload of 1 MiB has at most six characters per byte as JSON text.
_JSON_CHARACTERS_MAX = 6 * 1024 * 1024 + 1024
_FIELDS = ("payload", *RULES)


class Fault(NamedTuple):
    """One thing to correct: its place in the request, and what is allowed there."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place} {self.message}" if self.place else self.message


def find_faults(new: NewIntent) -> list[Fault]:
    """Return what is wrong with an intent, except for JSON that cannot be written."""
    given = {name: getattr(new, name) for name in _FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    faults = [] if "target" in given else [Fault("target", IS_REQUIRED)]
    for name, value in list(given.items()):
        message = _field_problem(name, value)
        if message is not None:
            faults.append(Fault(name, message))
            if name not in {"body", "content_type"}:  # they are there, if not as they should
                del given[name]
    return [*faults, *find_contradictions(given)]


def find_json_fault(new: NewIntent) -> Fault | None:
    """Return why the JSON of an intent cannot be sent to the database."""
    for name in ("payload", "metadata"):
        value = getattr(new, name)
        problem = None if value is None else _json_problem(value)
        if problem is not None:
            return Fault(name, problem)
    return None


def find_contradictions(given: Mapping[str, object]) -> Iterator[Fault]:
    """Return what is wrong between the fields that are given, and are possible each by itself.

    What depends on the current time is decided by the database, whose clock counts.
    """
    if ("payload" in given) == ("body" in given):
        yield Fault("payload", "must be given (any JSON but null) if body is not, and only then")
    if ("body" in given) != ("content_type" in given):
        yield Fault("content_type", "must be given with body, and only with body")
    for one, other in _EITHER:
        if one in given and other in given:
            yield Fault(other, f"must not be given with {one}")
    deadline, delay = given.get("deadline_seconds"), given.get("delay_seconds")
    if _is_number(deadline) and 0 < deadline <= (max(delay, 0) if _is_number(delay) else 0):
        yield Fault("deadline_seconds", _TOO_EARLY)
    due_at, deadline_at = given.get("due_at"), given.get("deadline_at")
    if isinstance(deadline_at, datetime) and isinstance(due_at, datetime) and deadline_at <= due_at:
        yield Fault("deadline_at", _TOO_EARLY)


def _field_problem(name: str, value: object) -> str | None:
    if isinstance(value, str) and not _is_encodable(value):
        return _UNSTORABLE
    if name.endswith("_at") and not (isinstance(value, datetime) and value.tzinfo is not None):
        return NO_MOMENT
    return None if name not in _CHECKS or _CHECKS[name](value) else RULES[name]


def _is_text(length_min: int, length_max: int) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return (
            isinstance(value, str)
            and length_min <= len(value) <= length_max
            and _CONTROL.search(value) is None
        )

    return check


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < PRIORITIES


def _is_delay(value: object) -> bool:
    return _is_number(value) and 0 <= value <= TEN_YEARS_SECONDS


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and FIRST_MOMENT <= value <= LAST_MOMENT


def _is_object(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, JsonDocument) and value.raw.startswith(b"{")
    )


_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "target": _is_text(1, 64),
    "content_type": _is_text(1, 255),
    "idempotency_key": _is_text(1, 255),
    "key_scope": lambda value: value in {"target", "all"} if isinstance(value, str) else False,
    "stream": _is_text(1, 255),
    "priority": _is_priority,
    "due_at": _is_moment,
    "delay_seconds": _is_delay,
    "deadline_at": _is_moment,
    "deadline_seconds": lambda value: _is_delay(value) and value != 0,
    "body": lambda value: isinstance(value, bytes),
    "metadata": _is_object,
    "trace_context": _is_text(0, 512),
}


def _json_problem(value: object) -> str | None:
    try:
        text = json_text(value, ascii_only=False)
    except InvalidArgument as error:
        return str(error)
    if len(text) > _JSON_CHARACTERS_MAX:
        return "is over 1 MiB"
    return _UNSTORABLE if _NUL.search(text) or not _is_encodable(text) else None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
