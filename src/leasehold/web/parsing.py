"""From what was sent to an intent, or to everything that is wrong with it at once."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from pydantic import BaseModel, ValidationError

from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.web.problems import FAULTS_MAX, Fault, Problem, invalid
from leasehold.web.schemas.requests import IntentSent
from leasehold.web.schemas.types import moment
from leasehold.web.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Model = TypeVar("Model", bound=BaseModel)

# Checked, but passed on as they were written.
UNREAD = frozenset({"payload", "metadata"})
_EITHER = (("due_at", "delay_seconds"), ("deadline_at", "deadline_seconds"))
_FIELDS = frozenset(IntentSent.model_fields)
# Between these nothing can contradict.
_PLAIN = {"target", "payload", "idempotency_key", "stream", "priority"}
_NULL = b"null"
CONTENT_BYTES_MAX = 1024 * 1024

_validate = IntentSent.__pydantic_validator__.validate_python


def read_intent(
    members: Mapping[str, Any],
    *,
    key: str | None = None,
    trace_context: str | None = None,
    faults: Sequence[Fault] = (),
    unknown_max: int = FAULTS_MAX,
) -> NewIntent:
    """Make an intent of what parse_object read; `key` is that of the header, if there was one.

    `faults` is what was found wrong with the request before: it is told with all the rest. Of
    unknown members only so many are told one by one.
    """
    faults = list(faults)
    members, left_out = _without_most_unknown(members, unknown_max)
    sent: IntentSent | None = None
    try:
        sent = _validate(members)
    except ValidationError as error:
        faults += faults_of(error)
    faults += _contradictions(members, key)
    body = _body(members.get("body"), faults)
    if faults or sent is None:
        raise invalid(faults, left_out)
    if len(sent.payload.raw if body is None else body) > CONTENT_BYTES_MAX:
        raise Problem("too_large", "a payload or body may have 1 MiB at most")
    return NewIntent(
        target=sent.target,
        payload=sent.payload,
        body=body,
        content_type=sent.content_type,
        idempotency_key=sent.idempotency_key if key is None else key,
        # Over HTTP a key stands for one intent, whichever target it was sent to.
        key_scope="all",
        stream=sent.stream,
        priority=sent.priority,
        due_at=sent.due_at,
        delay_seconds=sent.delay_seconds,
        deadline_at=sent.deadline_at,
        deadline_seconds=sent.deadline_seconds,
        metadata=sent.metadata if _is_given(sent.metadata) else None,
        trace_context=trace_context,
    )


def read_model(kind: type[Model], body: bytes) -> Model:
    """Read any other body."""
    try:
        return kind.model_validate(parse_json(body))
    except ValidationError as error:
        raise invalid(faults_of(error)) from None


def faults_of(error: ValidationError) -> list[Fault]:
    """Tell all that pydantic found, and never the value itself."""
    return [
        Fault(
            ".".join(str(part) for part in one["loc"])[:200],
            _told(one["type"], one["msg"]),
        )
        for one in error.errors(include_input=False, include_url=False, include_context=False)
    ]


def _told(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return 'is not known: what is sent to the gateway goes under "payload"'
    if kind == "missing":
        return "is needed"
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _without_most_unknown(
    members: Mapping[str, Any], unknown_max: int
) -> tuple[Mapping[str, Any], int]:
    """Leave out unknown members that would not be told of anyway, and say how many those are.

    To find a fault and to tell of it costs many times what it costs to send one.
    """
    if len(members) <= unknown_max:
        return members, 0
    unknown = [name for name in members if name not in _FIELDS]
    left_out = set(unknown[unknown_max:])
    kept = {name: value for name, value in members.items() if name not in left_out}
    return kept, len(left_out)


def _contradictions(members: Mapping[str, Any], key: str | None) -> Iterator[Fault]:
    if members.keys() <= _PLAIN and _is_given(members.get("payload")) and key is None:
        return  # as most are
    given = {name for name in members if _is_given(members[name])}
    if ("payload" in given) == ("body" in given):
        yield Fault("payload", "exactly one of payload (any JSON but null) and body is needed")
    if ("body" in given) != ("content_type" in given):
        yield Fault("content_type", "goes with body, and only with it")
    for one, other in _EITHER:
        if one in given and other in given:
            yield Fault(other, f"give {one} or {other}, not both")
    yield from _deadlines(members)
    if "metadata" in given and not members["metadata"].raw.startswith(b"{"):
        yield Fault("metadata", "must be an object")
    if key is not None and members.get("idempotency_key", key) != key:
        yield Fault("idempotency_key", "is not what the header Idempotency-Key says")


def _deadlines(members: Mapping[str, Any]) -> Iterator[Fault]:
    """Tell of a deadline that is not after the work may begin, whatever the time is.

    What depends on the time is for the database to say, whose clock counts.
    """
    deadline, delay = members.get("deadline_seconds"), members.get("delay_seconds")
    if _is_number(deadline) and 0 <= deadline <= (max(delay, 0) if _is_number(delay) else 0):
        yield Fault("deadline_seconds", "must be after now and after delay_seconds")
    try:
        is_late = moment(members.get("deadline_at")) <= moment(members.get("due_at"))
    except ValueError:
        return  # one is not given, or told of already
    if is_late:
        yield Fault("deadline_at", "must be after due_at")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, JsonDocument) and value.raw == _NULL)


def _body(text: object, faults: list[Fault]) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        faults.append(Fault("body", "must be base64"))
        return None
