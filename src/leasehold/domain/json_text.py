"""Writes JSON exactly: every digit of a Decimal, and no key that is not text.

Python's own encoder refuses a Decimal and turns the key 1 into "1", so that {1: 2} and {"1": 2}
would be the same payload.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import JsonDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# What the HTTP API accepts: about the range of a double, in both directions.
NUMBER_CHARACTERS_MAX = 64
EXPONENT_MIN, EXPONENT_MAX = -324, 308

# The most that the text of a payload, or a body, can have; see intent_problem.sql.
CONTENT_BYTES_MAX = 1024 * 1024
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# Found from its last digit on: searching from the first one would take the square of the digits.
_EXPONENTS = re.compile(rb"[1-9][eE][+-]?([0-9]{2,3})")

_ASCII = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_UNICODE = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode
# Types that the encoder writes as they are, without a look at what is inside.
_SCALARS = frozenset({str, int, float, bool, type(None)})


def json_text(value: object, *, ascii_only: bool = True) -> str:
    """Write a value, or raise InvalidArgument that says why it is not JSON.

    A JsonDocument, also one inside the value, was checked before and is written unchanged.
    """
    encode = _ASCII if ascii_only else _UNICODE
    try:
        return encode(value) if _is_plain(value) else _written(value, encode)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidArgument("is nested too deeply") from None


def overlong_numbers(raw: bytes) -> int:
    """Return how many digits PostgreSQL writes for the numbers in JSON if they alone are over the
    limit of a payload, else 0.

    It writes every digit: 1e308 has 309. This is a cheap bound; the JSON was parsed before.
    """
    # No number grows a hundredfold. Text in quotes may look like numbers.
    if len(raw) * 100 <= CONTENT_BYTES_MAX or _written_out(raw) <= CONTENT_BYTES_MAX:
        return 0
    digits = _written_out(_STRINGS.sub(b'""', raw))
    return digits if digits > CONTENT_BYTES_MAX else 0


def _written_out(raw: bytes) -> int:
    return sum(map(int, _EXPONENTS.findall(raw)))


def _is_plain(value: object) -> bool:
    """Whether the encoder writes a value exactly."""
    if isinstance(value, dict):
        members = cast("Mapping[object, object]", value)
        for name in members:
            _require_text(name)
        return _are_plain(members.values())
    if isinstance(value, list | tuple):
        return _are_plain(cast("Iterable[object]", value))
    return not isinstance(value, Decimal | JsonDocument)


def _are_plain(values: Iterable[object]) -> bool:
    return all(type(value) in _SCALARS or _is_plain(value) for value in values)


def _written(value: object, encode: Callable[[Any], str]) -> str:
    if isinstance(value, dict):
        members = cast("Mapping[object, object]", value).items()
        written = [
            f"{encode(_require_text(name))}:{_written(member, encode)}" for name, member in members
        ]
        return f"{{{','.join(written)}}}"
    if isinstance(value, list | tuple):
        items = cast("Iterable[object]", value)
        return f"[{','.join([_written(item, encode) for item in items])}]"
    if isinstance(value, JsonDocument):
        return value.raw.decode()
    return _number(value) if isinstance(value, Decimal) else encode(value)


def _require_text(name: object) -> str:
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"a key is of type {kind}, but JSON has only text as keys")
    return name


def _number(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("a Decimal is not a number")
    if not EXPONENT_MIN <= value.adjusted() <= EXPONENT_MAX:
        raise ValueError(
            f"a Decimal is out of range: exponents go from {EXPONENT_MIN} to {EXPONENT_MAX}"
        )
    text = str(value)
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise ValueError(f"a Decimal has more than {NUMBER_CHARACTERS_MAX} characters")
    return text
