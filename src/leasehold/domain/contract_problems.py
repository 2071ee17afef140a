"""Validation problems of a contract, in words for the person who wrote it, without its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    # The settings that are allowed in each table, by the path of the table.
    Settings = Mapping[tuple[str, ...], Sequence[str]]
    # The permitted values of a required setting.
    Choices = Mapping[str, Sequence[str]]

# A consequence of another problem, which is reported anyway.
_CONSEQUENCE = "default_factory_not_called"
_WITHOUT_KIND = frozenset({"union_tag_invalid", "union_tag_not_found"})
# Phrases of pydantic, and what the author of a file should read instead.
_PHRASES = (
    (r"^Value error, ", ""),
    (r"a valid dictionary.*|an object$", "a table"),
    (r"a valid tuple", "a list"),
    (r"a valid (\w+)", r"a \1"),
    (r"\ba integer", "an integer"),
    (r"a string$", "text"),
    (r"^(Input|String|Tuple|List|Dictionary) should (be|have)", r"must \2"),
)
# Random text has digits between its letters; a name has them at the end of a word (TOKEN_2).
_RANDOM_WORD = re.compile(r"(?=[A-Za-z0-9]{16})[A-Za-z]*[0-9]+[A-Za-z]")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{24}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the path of the setting, and what is allowed there."""

    place: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}: {self.message}" if self.place else self.message


def problems_of(error: ValidationError, settings: Settings, choices: Choices) -> list[Problem]:
    """Return all problems of a validation error. They never show values, which may be secret."""
    return [
        problem
        for one in error.errors(include_input=False, include_url=False)
        if one["type"] != _CONSEQUENCE
        for problem in _describe(one, settings, choices)
    ]


def refuse_all(problems: Sequence[str]) -> None:
    """Raise all contradictions between terms at once, from a model validator."""
    if problems:
        raise ValueError("\n".join(problems))


def _describe(error: ErrorDetails, settings: Settings, choices: Choices) -> Iterator[Problem]:
    place = tuple(str(part) for part in error["loc"])
    shown = _as_in_file(place)
    if error["type"] in _WITHOUT_KIND:
        is_given = error["type"] == "union_tag_invalid"
        said = "must be" if is_given else "is required:"
        yield Problem((*shown, "kind"), f"{said} one of 'http', 'ledger', 'python'")
    elif error["type"] == "extra_forbidden":
        yield Problem(shown, _unknown(place, settings))
    elif error["type"] == "missing":
        yield Problem(shown, _required(choices.get(place[-1], ())))
    else:
        yield from (Problem(shown, _rephrase(line)) for line in error["msg"].splitlines())


def _required(choices: Sequence[str]) -> str:
    if not choices:
        return "is required"
    *others, last = [repr(choice) for choice in choices]
    return f"is required: {', '.join(others)} or {last}"


def _unknown(place: tuple[str, ...], settings: Settings) -> str:
    allowed = settings.get(place[:-1], ())
    similar = get_close_matches(place[-1], allowed, n=1)
    if similar:
        return f"is not a setting; did you mean {similar[0]}?"
    return f"is not a setting; allowed here: {', '.join(sorted(allowed))}"


def in_our_words(message: str) -> str:
    """Say what pydantic says of a value as a requirement: "must be ...", "must have ..."."""
    said = message.removeprefix("Value error, ")
    return re.sub(r"^(Input|String|Tuple|List|Dictionary) should ", "must ", said)


def _rephrase(message: str) -> str:
    for phrase, replacement in _PHRASES:
        message = re.sub(phrase, replacement, message)
    return message


def _as_in_file(place: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the gateway kind, which pydantic adds to the path of a value in a union.

    A name that was given may be a secret in the wrong place, so it is hidden.
    """
    written = (*place[:1], *place[2:]) if place[:1] == ("gateway",) else place
    return tuple("***" if may_be_secret(part) else part for part in written)


def is_variable_name(text: str) -> bool:
    """Return whether this names an environment variable, in capitals as is usual.

    Tokens and signing secrets have lower case letters, or letters and digits mixed.
    """
    return _VARIABLE.fullmatch(text) is not None and not _has_random_word(text)


def may_be_secret(text: str) -> bool:
    """Return whether a name is better not shown: it has a long or a random word."""
    return _LONG_WORD.search(text) is not None or _has_random_word(text)


def _has_random_word(text: str) -> bool:
    return any(_RANDOM_WORD.match(word) for word in re.split(r"[^A-Za-z0-9]+", text))
