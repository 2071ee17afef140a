"""JSON as PostgreSQL and every gateway can read it again, or an error that says what is wrong.

Python's own parser lets pass what others refuse or read differently: NaN, two members of one name,
NUL, half of a surrogate pair, numbers of a million digits, any depth. And it turns numbers into
binary ones: what is only passed on is therefore checked, and kept as it was written.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import JsonDocument

if TYPE_CHECKING:
    from collections.abc import Collection

DEPTH_MAX = 100
NUMBER_CHARACTERS_MAX = 64
# As far as the numbers of most programs go, in both directions.
EXPONENT_MIN, EXPONENT_MAX = -324, 308

_SPACE = re.compile(r"[ \t\n\r]*")
# What almost every member of an object begins and ends with, in one step.
_SIMPLE_NAME = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match
_AFTER_MEMBER = re.compile(r"[ \t\n\r]*([,}])(?:(?<=,)[ \t\n\r]*)?").match
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
# Escapes in their order, so that an escaped backslash is not taken for the beginning of one.
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<bad>u0000|u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class NotStrictJson(InvalidArgument):
    """The text is no JSON, or one that somebody would read differently."""


def parse_json(body: bytes) -> Any:  # noqa: ANN401 (any JSON)
    """Parse all of it."""
    text = _checked_text(body)
    value, end = _value(text, _after_space(text, 0))
    _require_end(text, end)
    return value


def parse_object(body: bytes, unread: Collection[str]) -> dict[str, Any]:
    """Parse an object; the members named in `unread` are checked, and given as they are written."""
    text = _checked_text(body)
    found, end = _object(text, _after_space(text, 0), unread)
    _require_end(text, end)
    return found


def parse_objects(body: bytes, name: str, unread: Collection[str]) -> list[dict[str, Any]]:
    """Parse an object whose one member is a list of objects, each as parse_object does."""
    text = _checked_text(body)
    at = _after_space(text, _require(text, _after_space(text, 0), "{"))
    member, at = _name(text, at)
    if member != name:
        raise NotStrictJson(f"the object must have one member, {name!r}")
    objects, at = _objects(text, at, unread)
    if text[at : at + 1] != "}":
        raise NotStrictJson(f"the object must have one member, {name!r}, and end after it")
    _require_end(text, at + 1)
    return objects


def _checked_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise NotStrictJson(f"this is not UTF-8 (byte {error.start})") from None
    if "\\u" in text and any(found["bad"] for found in _ESCAPES.finditer(text)):
        raise NotStrictJson("this has a NUL, or half of a surrogate pair, which nobody can store")
    # Mostly there are so few brackets that they cannot be nested too deeply.
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise NotStrictJson(f"this is nested more than {DEPTH_MAX} levels deep")
    return text


def _depth(text: str) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        bracket = found.group()
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest


def _objects(text: str, at: int, unread: Collection[str]) -> tuple[list[dict[str, Any]], int]:
    at = _after_space(text, _require(text, at, "["))
    objects: list[dict[str, Any]] = []
    if text[at : at + 1] == "]":
        return objects, _after_space(text, at + 1)
    while True:
        found, at = _object(text, at, unread)
        objects.append(found)
        at = _after_space(text, at)
        if text[at : at + 1] != ",":
            return objects, _after_space(text, _require(text, at, "]"))
        at = _after_space(text, at + 1)


def _object(text: str, at: int, unread: Collection[str]) -> tuple[dict[str, Any], int]:
    at = _after_space(text, _require(text, at, "{"))
    found: dict[str, Any] = {}
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        simple = _SIMPLE_NAME(text, at)
        name, at = (simple[1], simple.end()) if simple else _name(text, at)
        if name in found:
            raise NotStrictJson(_twice(name))
        value, end = _value(text, at)
        found[name] = JsonDocument(text[at:end].encode()) if name in unread else value
        after = _AFTER_MEMBER(text, end)
        if after is None:
            raise NotStrictJson(f"this is no JSON: ',' or '}}' is expected at character {end}")
        at = after.end()
        if after[1] == "}":
            return found, at


def _name(text: str, at: int) -> tuple[str, int]:
    """Read the name of a member, and go to its value."""
    if text[at : at + 1] != '"':
        raise NotStrictJson(f"a name in quotes is expected at character {at}")
    name, at = _value(text, at)
    return name, _after_space(text, _require(text, _after_space(text, at), ":"))


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"this is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotStrictJson(f"this is nested more than {DEPTH_MAX} levels deep") from None


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  (matches "")


def _require(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise NotStrictJson(f"this is no JSON: {character!r} is expected at character {at}")
    return at + 1


def _require_end(text: str, at: int) -> None:
    at = _after_space(text, at)
    if at != len(text):
        raise NotStrictJson(f"this is no JSON: it goes on after its end, at character {at}")


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                raise NotStrictJson(_twice(name))
            seen.add(name)
    return found


def _twice(name: str) -> str:
    return f"an object has two members of the name {name[:80]!r}: nobody can say which one counts"


def _integer(text: str) -> int:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise NotStrictJson(f"a number has more than {NUMBER_CHARACTERS_MAX} characters")
    return int(text)


def _number(text: str) -> float:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise NotStrictJson(f"a number has more than {NUMBER_CHARACTERS_MAX} characters")
    _, _, exponent = text.lower().partition("e")
    value = float(text)
    if abs(value) == float("inf") or not EXPONENT_MIN <= int(exponent or 0) <= EXPONENT_MAX:
        raise NotStrictJson(
            f"the number {text} is out of range: exponents go from {EXPONENT_MIN} to {EXPONENT_MAX}"
        )
    return value


def _refuse_constant(text: str) -> float:
    raise NotStrictJson(f"{text} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_refuse_constant,
)
