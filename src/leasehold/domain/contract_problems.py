"""What is wrong with given terms, for people: where it stands, and what is allowed there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    # The settings that are allowed in each table, by the table's place.
    Settings = Mapping[tuple[str, ...], Sequence[str]]
    # What may be given for a setting that is needed.
    Choices = Mapping[str, Sequence[str]]

# Follows from another problem, which is told already.
_CONSEQUENCE = "default_factory_not_called"
_WITHOUT_KIND = frozenset({"union_tag_invalid", "union_tag_not_found"})
# What pydantic says, and what a writer of a file reads.
_PHRASES = (
    (r"^Value error, ", ""),
    (r"a valid dictionary.*|an object$", "a table"),
    (r"a valid tuple", "a list"),
    (r"a valid (\w+)", r"a \1"),
    (r"\ba integer", "an integer"),
    (r"a string$", "text"),
    (r"^(Input|String|Tuple|List|Dictionary) should (be|have)", r"must \2"),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that must change: the place inside what was given, and what is allowed there."""

    place: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}: {self.message}" if self.place else self.message


def problems_of(error: ValidationError, settings: Settings, choices: Choices) -> list[Problem]:
    """Tell all problems at once, and never the value itself: it may be a secret."""
    return [
        problem
        for one in error.errors(include_input=False, include_url=False)
        if one["type"] != _CONSEQUENCE
        for problem in _told(one, settings, choices)
    ]


def refuse_all(problems: Sequence[str]) -> None:
    """Refuse terms that contradict each other, all of them at once; for validators of models."""
    if problems:
        raise ValueError("\n".join(problems))


def _told(error: ErrorDetails, settings: Settings, choices: Choices) -> Iterator[Problem]:
    place = tuple(str(part) for part in error["loc"])
    shown = _as_written(place)
    if error["type"] in _WITHOUT_KIND:
        expected = error.get("ctx", {}).get("expected_tags", "'http', 'python'")
        yield Problem((*shown, "kind"), f"is required: one of {expected}")
    elif error["type"] == "extra_forbidden":
        yield Problem(shown, _unknown(place, settings))
    elif error["type"] == "missing":
        yield Problem(shown, _needed(choices.get(place[-1], ())))
    else:
        yield from (Problem(shown, _plainly(line)) for line in error["msg"].splitlines())


def _needed(choices: Sequence[str]) -> str:
    if not choices:
        return "is required"
    *others, last = [repr(choice) for choice in choices]
    return f"is required: {', '.join(others)} or {last}"


def _unknown(place: tuple[str, ...], settings: Settings) -> str:
    allowed = settings.get(place[:-1], ())
    meant = get_close_matches(place[-1], allowed, n=1)
    if meant:
        return f"is not a setting; did you mean {meant[0]}?"
    return f"is not a setting; allowed here: {', '.join(sorted(allowed))}"


def _plainly(message: str) -> str:
    for phrase, ours in _PHRASES:
        message = re.sub(phrase, ours, message)
    return message


def _as_written(place: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out what pydantic adds to the place of a value in a union: the kind of the gateway."""
    return (*place[:1], *place[2:]) if place[:1] == ("gateway",) else place
