"""What is wrong with given terms, for people: where it stands, and what is allowed there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

# Follows from another problem, which is told already.
_CONSEQUENCE = "default_factory_not_called"
# What pydantic adds to the place of a value in a union of models.
_TAGS = frozenset({"http", "python"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that must change: the place inside what was given, and what is allowed there."""

    place: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}: {self.message}" if self.place else self.message


def problems_of(error: ValidationError) -> list[Problem]:
    """Tell all problems at once, and never the value itself: it may be a secret."""
    return [
        Problem(_place(one["loc"]), one["msg"].removeprefix("Value error, "))
        for one in error.errors(include_input=False, include_url=False)
        if one["type"] != _CONSEQUENCE
    ]


def _place(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Write it as its author did; who writes kind = "http" does not write gateway.http.url."""
    return tuple(
        str(part)
        for before, part in zip((None, *location), location, strict=False)
        if not (before == "gateway" and part in _TAGS)
    )
