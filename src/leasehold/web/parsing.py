"""From a request body to an intent, or to a list of everything that is wrong with it."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from leasehold.domain.errors import ContentTooLarge
from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.domain.intent_rules import IS_REQUIRED, NO_MOMENT, RULES, Fault, find_contradictions
from leasehold.domain.json_text import CONTENT_BYTES_MAX, overlong_numbers
from leasehold.domain.terms import in_our_words
from leasehold.web.problems import FAULTS_MAX, Problem, invalid
from leasehold.web.request_context import BODY_BYTES_MAX
from leasehold.web.schemas.requests import WAIT_SECONDS_MAX, IntentRequest, parse_moment
from leasehold.web.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Model = TypeVar("Model", bound=BaseModel)

# These members are checked, but passed on as they were written.
VERBATIM = frozenset({"payload", "metadata"})
WAIT_PARAMETER: dict[str, Any] = {
    "name": "wait_seconds",
    "in": "query",
    "required": False,
    "schema": {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX, "default": 0},
    "description": "Respond when the intent is finished, or after this many seconds.",
}
_FIELDS = frozenset(IntentRequest.model_fields)
# Members that cannot contradict one another.
_PLAIN = {"target", "payload", "idempotency_key", "key_scope", "stream", "priority"}
_NULL = b"null"
_PLACE_LENGTH_MAX = 80
# A number in JSON; Python would accept more.
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,3})?", re.ASCII)

# In JSON a body is text.
_RULES = {**RULES, "body": "must be base64"}
_UNKNOWN_MEMBER = "is not a known member"
_UNKNOWN_OF_INTENT = 'is not a known member; content for the gateway goes into "payload"'
UNKNOWN_PARAMETER = "is not a known parameter"

_validate = IntentRequest.__pydantic_validator__.validate_python


def parse_intent(
    members: Mapping[str, Any],
    *,
    key: str | None = None,
    trace_context: str | None = None,
    faults: Sequence[Fault] = (),
    unknown_max: int = FAULTS_MAX,
) -> NewIntent:
    """Make an intent of the members of a JSON object; `key` is the Idempotency-Key header.

    `faults` were found in the request before; all are reported together. At most `unknown_max`
    unknown members are reported one by one.
    """
    faults = list(faults)
    members, left_out = _limit_unknown(members, unknown_max)
    request: IntentRequest | None = None
    try:
        request = _validate(members)
    except ValidationError as error:
        faults += _intent_faults(error)
    faults += _contradictions(members, key)
    body = _decode_body(members.get("body"), faults)
    if faults or request is None:
        raise invalid(faults, left_out)
    _require_content_size(request.payload if body is None else None, body)
    return NewIntent(
        target=request.target,
        payload=request.payload,
        body=body,
        content_type=request.content_type,
        idempotency_key=request.idempotency_key if key is None else key,
        key_scope=request.key_scope,
        stream=request.stream,
        priority=request.priority,
        due_at=request.due_at,
        delay_seconds=request.delay_seconds,
        deadline_at=request.deadline_at,
        deadline_seconds=request.deadline_seconds,
        metadata=request.metadata if _is_given(request.metadata) else None,
        trace_context=trace_context,
    )


def too_large(problem: str) -> Problem:
    """Refuse content that is over the limit, in the words of the database."""
    error = ContentTooLarge.of(problem, problem)
    return Problem("too_large", problem, size_bytes=error.size_bytes, limit_bytes=error.limit_bytes)


def _require_content_size(payload: JsonDocument | None, body: bytes | None) -> None:
    """Refuse what is certainly over the limit. The database measures the text of the rest."""
    if body is not None and len(body) > CONTENT_BYTES_MAX:
        raise too_large(f"body has {len(body)} bytes; the limit is {CONTENT_BYTES_MAX}")
    if payload is None:
        return
    least = overlong_numbers(payload.raw)
    if least:
        raise too_large(
            f"payload takes at least {least} bytes as text, because every digit of a number is "
            f"written out; the limit is {CONTENT_BYTES_MAX}"
        )
    # White space and escapes may make it longer than its text, but no single request that long.
    if len(payload.raw) > BODY_BYTES_MAX:
        raise too_large(f"payload has {len(payload.raw)} bytes; the limit is {CONTENT_BYTES_MAX}")


def parse_model(kind: type[Model], body: bytes) -> Model:
    """Parse any other body."""
    try:
        return kind.model_validate(parse_json(body))
    except ValidationError as error:
        raise invalid(faults_of(error)) from None


def parse_wait(query: bytes, faults: list[Fault]) -> float:
    """Read ?wait_seconds=N, the only query parameter of an intent; faults are added to the list."""
    if not query:
        return 0.0
    name_expected = WAIT_PARAMETER["name"]
    seconds: float | None = None
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != name_expected:
            faults.append(Fault(name[:_PLACE_LENGTH_MAX], UNKNOWN_PARAMETER))
        elif seconds is not None:
            faults.append(Fault(name, "must be given once"))
        elif not _NUMBER.fullmatch(text):
            faults.append(Fault(name, "must be a number of seconds"))
        else:
            seconds = float(text)
            if not 0 <= seconds <= WAIT_SECONDS_MAX:
                faults.append(Fault(name, f"must be from 0 to {WAIT_SECONDS_MAX}"))
    return seconds or 0.0


def faults_of(error: ValidationError, unknown: str = _UNKNOWN_MEMBER) -> list[Fault]:
    """List what pydantic found, without the values."""
    return [
        Fault(
            ".".join(str(part) for part in one["loc"])[:200],
            message_of(one["type"], one["msg"], unknown),
        )
        for one in error.errors(include_input=False, include_url=False, include_context=False)
    ]


def message_of(kind: str, message: str, unknown: str = _UNKNOWN_MEMBER) -> str:
    """Say in our words what pydantic found, without the value or a part of it."""
    match kind:
        case "extra_forbidden":
            return unknown
        case "missing":
            return IS_REQUIRED
        case "string_pattern_mismatch":  # all our patterns of text are about these
            return "must not contain control characters"
        case "uuid_parsing" | "uuid_type":
            return "must be a UUID"
        case _:
            return in_our_words(message)


def _limit_unknown(members: Mapping[str, Any], unknown_max: int) -> tuple[Mapping[str, Any], int]:
    """Drop unknown members that would not be reported, and say how many.

    Finding and reporting a fault costs many times what sending one does.
    """
    if len(members) <= unknown_max:
        return members, 0
    unknown = [name for name in members if name not in _FIELDS]
    left_out = set(unknown[unknown_max:])
    kept = {name: value for name, value in members.items() if name not in left_out}
    return kept, len(left_out)


def _intent_faults(error: ValidationError) -> Iterator[Fault]:
    """Say what pydantic found in the words of the rules."""
    for fault in faults_of(error, _UNKNOWN_OF_INTENT):
        is_ours = fault.message in {_UNKNOWN_OF_INTENT, IS_REQUIRED, NO_MOMENT}
        yield fault if is_ours else fault._replace(message=_RULES.get(fault.place, fault.message))


def _contradictions(members: Mapping[str, Any], key: str | None) -> Iterator[Fault]:
    if members.keys() <= _PLAIN and _is_given(members.get("payload")) and key is None:
        return  # the common case
    given = {name: value for name, value in members.items() if _is_given(value)}
    for name in given.keys() & {"due_at", "deadline_at"}:
        try:
            given[name] = parse_moment(given[name])
        except ValueError:
            given[name] = None  # reported already, or in another place
    yield from find_contradictions(given)
    if "metadata" in given and not given["metadata"].raw.startswith(b"{"):
        yield Fault("metadata", RULES["metadata"])
    if key is not None and members.get("idempotency_key", key) != key:
        yield Fault("idempotency_key", "differs from the header Idempotency-Key")


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, JsonDocument) and value.raw == _NULL)


def _decode_body(text: object, faults: list[Fault]) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        faults.append(Fault("body", _RULES["body"]))
        return None
