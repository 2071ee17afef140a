"""Finds all problems of the terms that a person wrote, not only the first layer of them.

Relations between settings can be checked only where each setting has a possible value. So wrong
settings are replaced, and the terms are validated again: once for the relations inside a gateway,
once for those of the whole contract.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from leasehold.domain.contract import (
    Contract,
    HttpTerms,
    LedgerTerms,
    RetryTerms,
    contract_problems,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from leasehold.domain.contract_problems import Problem

_ROUNDS_MAX = 4  # settings, relations inside a table, relations of the contract, and one to spare
# What stands for a required setting that is missing or wrong.
_PLACEHOLDERS = {
    "target": "placeholder",
    "scope": "item",
    "guarantee": "keyed",
    "url": "https://placeholder.invalid/",
    "function": "placeholder:placeholder",
}


class _Http(HttpTerms):
    """Terms whose relations were reported before."""

    def contradictions(self) -> Iterator[str]:
        yield from ()

    def _broken_headers(self) -> Iterator[str]:
        yield from ()


class _Ledger(LedgerTerms):
    """As _Http."""

    def contradictions(self) -> Iterator[str]:
        yield from ()

    def _broken_headers(self) -> Iterator[str]:
        yield from ()


class _Retry(RetryTerms):
    """As _Http."""

    def _contradictions(self) -> Iterator[str]:
        yield from ()


# The tables that have relations of their own, by the place that pydantic names.
_TABLES: dict[tuple[int | str, ...], type[_Http | _Ledger | _Retry]] = {
    ("gateway", "http"): _Http,
    ("gateway", "ledger"): _Ledger,
    ("retry",): _Retry,
}


def find_problems(given: Mapping[str, Any]) -> list[Problem]:
    """Return all problems of the terms; empty if they can be published."""
    trial = {
        name: dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in given.items()
    }
    problems: list[Problem] = []
    for _ in range(_ROUNDS_MAX):
        try:
            Contract.model_validate(trial)
        except ValidationError as error:
            found = contract_problems(error)
            new = [one for one in found if not _is_consequence(one, problems)]
            problems += [one for one in new if one not in problems]
            for one in error.errors(include_url=False):
                _mend(trial, one)
        else:
            break
    return problems


def _is_consequence(problem: Problem, reported: Sequence[Problem]) -> bool:
    """Return whether a problem is about a setting that was reported before, and replaced here."""
    # A relation inside a table is no reason to keep silent about all that mentions the table.
    named = {part for one in reported for part in one.place if not part.isdigit()}
    names = named - {"gateway", "retry"}
    return any(re.search(rf"\b{re.escape(name)}\b", str(problem)) for name in names)


def _mend(trial: dict[str, Any], error: ErrorDetails) -> None:
    """Replace what an error is about. Relations of the whole contract are the last to show."""
    place = error["loc"]
    if not place:
        return
    terms = _TABLES.get(place)
    table, name = trial, str(place[0])
    if terms is not None and error["type"] == "value_error":
        # Its settings are possible, only not together.
        trial[name] = terms.model_construct(**trial[name])
        return
    nested: object = trial.get(name)
    inner = place[2:] if name == "gateway" else place[1:]
    if isinstance(nested, dict) and inner:
        table, name = cast("dict[str, Any]", nested), str(inner[0])
    if name in _PLACEHOLDERS:
        table[name] = _PLACEHOLDERS[name]
    else:
        table.pop(name, None)
