"""Lines of JSON as intents: what `leasehold enqueue --file` reads, a bounded piece at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, ValidationError

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import NewIntent

if TYPE_CHECKING:
    from collections.abc import Iterator

# A payload of 1 MiB, written as wastefully as JSON allows.
LINE_BYTES_MAX = 8 * 1024 * 1024
_EITHER = (("due_at", "delay_seconds"), ("deadline_at", "deadline_seconds"))


class Line(BaseModel):
    """One intent as JSON: the fields of NewIntent; `target` only where it differs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str | None = None
    payload: Any = None
    body: Base64Bytes | None = None
    content_type: str | None = None
    idempotency_key: str | None = None
    stream: str | None = None
    priority: int | None = None
    due_at: AwareDatetime | None = None
    delay_seconds: float | None = None
    deadline_at: AwareDatetime | None = None
    deadline_seconds: float | None = None
    metadata: dict[str, Any] | None = None
    trace_context: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A line of the file: an intent, or the problem that it is none."""

    number: int
    end: int
    intent: NewIntent | None
    problem: str | None


def read_lines(file: BinaryIO, default: NewIntent) -> Iterator[Read]:
    """Read intents line by line; what a line does not say is as in `default`."""
    number, end = 0, 0
    while raw := file.readline(LINE_BYTES_MAX):
        number, end = number + 1, end + len(raw)
        if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
            raise InvalidArgument(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        if raw.isspace():
            continue
        try:
            yield Read(number, end, intent_of(parse_json(raw.decode()), default), None)
        except (InvalidArgument, UnicodeDecodeError) as error:
            yield Read(number, end, None, str(error))


def intent_of(value: object, default: NewIntent) -> NewIntent:
    """Make an intent of one line's JSON."""
    try:
        line = Line.model_validate(value)
    except ValidationError as error:
        told = "; ".join(_told(one["loc"], one["type"], one["msg"]) for one in error.errors())
        raise InvalidArgument(told) from None
    given = {name: getattr(line, name) for name in line.model_fields_set}
    fields = {name: getattr(default, name) for name in NewIntent.__slots__}
    for pair in _EITHER:
        if not given.keys().isdisjoint(pair):  # two spellings of one thing
            fields |= dict.fromkeys(pair)
    return NewIntent(**fields | given)


def parse_json(text: str) -> Any:  # noqa: ANN401 (any JSON)
    """Parse JSON; refuse a number that would not come out as it was written."""
    try:
        return json.loads(text, parse_float=_exact, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidArgument("this JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidArgument(f"this is no JSON: {error}") from None


def _exact(text: str) -> float:
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise InvalidArgument(f"the number {text} would be changed to {value!r}: write it as text")
    return value


def _refuse_constant(text: str) -> float:
    raise InvalidArgument(f"{text} is no JSON")


def _told(place: tuple[int | str, ...], kind: str, message: str) -> str:
    if not place:
        return 'a line must be an object such as {"payload": {}, "idempotency_key": "order-4711"}'
    if kind == "extra_forbidden":
        return f'there is no field {place[0]!r}: what is sent goes under "payload"'
    return f"{place[0]}: {message}"
