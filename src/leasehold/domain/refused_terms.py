"""All problems of refused terms, in words for the person who wrote them, without their secrets."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import ValidationError

from leasehold.domain.gateway_terms import known_kinds
from leasehold.domain.secret_names import may_be_secret
from leasehold.domain.terms import Problem, Terms, in_words_of_a_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

# A consequence of another problem, which is reported anyway.
_CONSEQUENCE = "default_factory_not_called"
_WITHOUT_KIND = {"union_tag_invalid": "must be", "union_tag_not_found": "is required:"}
_ROUNDS_MAX = 3  # settings, relations between them, and one to spare


def problems_of(model: type[Terms], error: ValidationError) -> list[Problem]:
    """Return all problems of a validation error. They never show values, which may be secret."""
    return [
        problem
        for one in error.errors(include_input=False, include_url=False)
        if one["type"] != _CONSEQUENCE
        for problem in _describe(model, one)
    ]


def find_problems(model: type[Terms], given: Mapping[str, Any]) -> list[Problem]:
    """Return all problems of the terms, not only the first layer of them; empty if there are none.

    Relations between settings can be checked only where each setting has a possible value. So
    wrong settings are replaced, and the terms are validated again.
    """
    trial = {
        name: dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in given.items()
    }
    problems: list[Problem] = []
    for _ in range(_ROUNDS_MAX):
        contradictions: list[Problem] = []
        try:
            model.model_validate(trial, context=contradictions)
        except ValidationError as error:
            problems += _news(problems_of(model, error), problems)
            for one in error.errors(include_url=False):
                _mend(model, trial, one)
        else:
            return problems + _news(contradictions, problems)
    return problems


def _news(found: Sequence[Problem], reported: Sequence[Problem]) -> list[Problem]:
    """Return the problems that are not about a setting that was reported before, and replaced."""
    # A wrong setting in a table is no reason to keep silent about all that mentions the table.
    names = {part for one in reported for part in one.place if not part.isdigit()}
    names -= {"gateway", "retry"}
    return [
        one
        for one in dict.fromkeys(found)  # pydantic also validates an instance that it has made
        if not any(re.search(rf"\b{re.escape(name)}\b", str(one)) for name in names)
    ]


def _mend(model: type[Terms], trial: dict[str, Any], error: ErrorDetails) -> None:
    """Replace what an error is about by a possible value, or by the default."""
    place = _written(tuple(map(str, error["loc"])))
    table, terms, name = trial, model, place[0]
    nested: object = trial.get(name)
    if isinstance(nested, dict) and len(place) > 1:
        terms = _table(model, tuple(map(str, error["loc"]))) or model
        table, name = cast("dict[str, Any]", nested), place[1]
    if name in terms.placeholders:
        table[name] = terms.placeholders[name]
    else:
        table.pop(name, None)


def _describe(model: type[Terms], error: ErrorDetails) -> Iterator[Problem]:
    place = tuple(str(part) for part in error["loc"])
    # A name that was given may be a secret in the wrong place.
    shown = tuple("***" if may_be_secret(part) else part for part in _written(place))
    if error["type"] in _WITHOUT_KIND:
        kinds = ", ".join(map(repr, known_kinds()))
        yield Problem((*shown, "kind"), f"{_WITHOUT_KIND[error['type']]} one of {kinds}")
    elif error["type"] == "extra_forbidden":
        yield Problem(shown, _unknown(place[-1], _settings(model, place)))
    elif error["type"] == "missing":
        field = model.model_fields.get(place[-1])
        choices = get_args(field.annotation) if field else ()
        yield Problem(shown, _required([one for one in choices if isinstance(one, str)]))
    else:
        lines = error["msg"].splitlines()
        yield from (Problem(shown, in_words_of_a_file(line)) for line in lines)


def _settings(model: type[Terms], place: tuple[str, ...]) -> list[str]:
    """Return the settings of the table that a setting was written in."""
    table = _table(model, place)
    return [] if table is None else [one for one in table.model_fields if one not in table.assigned]


def _table(model: type[Terms], place: tuple[str, ...]) -> type[Terms] | None:
    """Return the terms whose table holds a setting; None if it is none of ours."""
    if len(place) == 1:
        return model
    if place[0] == "gateway":
        return known_kinds().get(place[1])
    nested = model.model_fields[place[0]].annotation
    return nested if isinstance(nested, type) and issubclass(nested, Terms) else None


def _written(place: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path as in the file: without the kind, which pydantic adds."""
    return (*place[:1], *place[2:]) if place[:1] == ("gateway",) else place


def _required(choices: Sequence[str]) -> str:
    if not choices:
        return "is required"
    *others, last = map(repr, choices)
    return f"is required: {', '.join(others)} or {last}"


def _unknown(name: str, allowed: Sequence[str]) -> str:
    similar = get_close_matches(name, allowed, n=1)
    if similar:
        return f"is not a setting; did you mean {similar[0]}?"
    return f"is not a setting; allowed here: {', '.join(sorted(allowed))}"
