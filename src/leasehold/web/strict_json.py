"""Strict JSON: accepts only what PostgreSQL and every gateway read the same way.

Python's parser also accepts NaN, duplicate members, NUL, lone surrogates, numbers of a million
digits and any depth. It also converts numbers to floats, so content that we only pass on is checked
and then kept exactly as it was written.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import JsonDocument
from leasehold.domain.json_text import EXPONENT_MAX, EXPONENT_MIN, NUMBER_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

DEPTH_MAX = 100

_SPACE = re.compile(r"[ \t\n\r]*")
# How almost every member of an object begins and ends, matched in one step.
_SIMPLE_NAME = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*').match
_AFTER_MEMBER = re.compile(r"[ \t\n\r]*([,}])(?:(?<=,)[ \t\n\r]*)?").match
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
# Every escape is matched in order, so that an escaped backslash does not begin another one.
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<bad>u0000|u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class NotStrictJson(InvalidArgument):
    """The text is not JSON, or other parsers would read it differently."""


def parse_json(body: bytes) -> Any:  # noqa: ANN401 (any JSON)
    """Parse a document."""
    text = _checked_text(body)
    value, end = _value(text, _after_space(text, 0))
    _require_end(text, end)
    return value


def parse_object(body: bytes, verbatim: Collection[str]) -> dict[str, Any]:
    """Parse an object; the members in `verbatim` are checked and returned as JsonDocument."""
    text = _checked_text(body)
    found, end = _object(text, _after_space(text, 0), verbatim)
    _require_end(text, end)
    return found


def parse_objects(body: bytes, name: str, verbatim: Collection[str]) -> list[dict[str, Any]]:
    """Parse an object with one member, a list of objects; each is parsed as by parse_object."""
    text = _checked_text(body)
    at = _after_space(text, _require(text, _after_space(text, 0), "{"))
    member, at = _name(text, at)
    if member != name:
        raise NotStrictJson(f"The object must have only the member {name!r}.")
    objects, at = _objects(text, at, verbatim)
    if text[at : at + 1] != "}":
        raise NotStrictJson(f"The object must have only the member {name!r}.")
    _require_end(text, at + 1)
    return objects


def _checked_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise NotStrictJson(f"The text is not UTF-8 (byte {error.start}).") from None
    if "\\u" in text and any(found["bad"] for found in _ESCAPES.finditer(text)):
        raise NotStrictJson("The text has a NUL or a lone surrogate, which cannot be stored.")
    # Usually there are too few brackets to be nested too deeply.
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise NotStrictJson(f"The text is nested more than {DEPTH_MAX} levels deep.")
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


def _objects(text: str, at: int, verbatim: Collection[str]) -> tuple[list[dict[str, Any]], int]:
    at = _after_space(text, _require(text, at, "["))
    objects: list[dict[str, Any]] = []
    if text[at : at + 1] == "]":
        return objects, _after_space(text, at + 1)
    while True:
        found, at = _object(text, at, verbatim)
        objects.append(found)
        at = _after_space(text, at)
        if text[at : at + 1] != ",":
            return objects, _after_space(text, _require(text, at, "]"))
        at = _after_space(text, at + 1)


def _object(text: str, at: int, verbatim: Collection[str]) -> tuple[dict[str, Any], int]:
    at = _after_space(text, _require(text, at, "{"))
    found: dict[str, Any] = {}
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        simple = _SIMPLE_NAME(text, at)
        name, at = (simple[1], simple.end()) if simple else _name(text, at)
        if name in found:
            raise NotStrictJson(f"The object has two members named {name[:80]!r}.")
        value, end = _value(text, at)
        found[name] = JsonDocument(text[at:end].encode()) if name in verbatim else value
        after = _AFTER_MEMBER(text, end)
        if after is None:
            raise NotStrictJson(f"Invalid JSON: expected ',' or '}}' at character {end}.")
        at = after.end()
        if after[1] == "}":
            return found, at


def _name(text: str, at: int) -> tuple[str, int]:
    """Read the name of a member; returns the position of its value."""
    if text[at : at + 1] != '"':
        raise NotStrictJson(f"Invalid JSON: expected a name in quotes at character {at}.")
    name, at = _value(text, at)
    return name, _after_space(text, _require(text, _after_space(text, at), ":"))


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"Invalid JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise NotStrictJson(f"The text is nested more than {DEPTH_MAX} levels deep.") from None


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  (matches "")


def _require(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise NotStrictJson(f"Invalid JSON: expected {character!r} at character {at}.")
    return at + 1


def _require_end(text: str, at: int) -> None:
    at = _after_space(text, at)
    if at != len(text):
        raise NotStrictJson(f"Invalid JSON: data after the end, at character {at}.")


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        # Without the name: inside a payload, names are the caller's data.
        raise NotStrictJson("An object has two members of the same name.")
    return found


def _integer(text: str) -> int:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise NotStrictJson(f"A number has more than {NUMBER_CHARACTERS_MAX} characters.")
    return int(text)


def _number(text: str) -> float:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise NotStrictJson(f"A number has more than {NUMBER_CHARACTERS_MAX} characters.")
    _, _, exponent = text.lower().partition("e")
    value = float(text)
    if abs(value) == float("inf") or not EXPONENT_MIN <= int(exponent or 0) <= EXPONENT_MAX:
        raise NotStrictJson(
            f"A number is out of range: exponents go from {EXPONENT_MIN} to {EXPONENT_MAX}."
        )
    return value


def _refuse_constant(_: str) -> float:
    raise NotStrictJson("Invalid JSON: NaN and Infinity are not numbers.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_refuse_constant,
)
