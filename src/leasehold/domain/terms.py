"""Terms: settings that a person wrote and a contract keeps, and what is wrong with refused ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the path of the setting, and what is allowed there."""

    place: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}: {self.message}" if self.place else self.message


class Terms(BaseModel):
    """The base class of all contract terms: immutable, without unknown fields.

    Strict: "30" is not a number, and true is not 1. Errors never show the given value. `place` is
    the table of the file that holds these settings.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        validate_default=True,
    )
    place: ClassVar[tuple[str, ...]] = ()
    # Possible values of required settings: they stand for a wrong one while relations are checked.
    placeholders: ClassVar[Mapping[str, object]] = {}
    # Fields that a file cannot set.
    assigned: ClassVar[frozenset[str]] = frozenset()

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: relations between settings, each of which is possible."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        """Refuse all contradictions at once. A list as context collects them instead."""
        found = list(self.contradictions())
        if info.context is not None:
            info.context.extend(Problem(self.place, one) for one in found)
        elif found:
            raise ValueError("\n".join(found))
        return self


def matching(pattern: str, allowed: str) -> AfterValidator:
    """Accept text that matches the whole pattern; the error message is `allowed`."""
    expression = re.compile(pattern)

    def check(text: str) -> str:
        if not expression.fullmatch(text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


def in_our_words(message: str) -> str:
    """Say what pydantic says of a value as a requirement: "must be ...", "must have ..."."""
    said = message.removeprefix("Value error, ")
    return re.sub(r"^(Input|String|Tuple|List|Dictionary) should ", "must ", said)


def in_words_of_a_file(message: str) -> str:
    """Say it to the author of a file, in the words of TOML."""
    for phrase, replacement in _PHRASES:
        message = re.sub(phrase, replacement, message)
    return message
