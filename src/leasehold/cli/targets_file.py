"""leasehold.toml: the file in which a team defines its targets, parsed and written.

The parser reports all problems of a file at once, each with its key and what is allowed there.
Only `leasehold targets` reads this file; instances read the published contracts.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from leasehold.domain.contract import Contract, contract_problems
from leasehold.domain.contract_problems import Problem
from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FILE_NAME = "leasehold.toml"
_FILE_BYTES_MAX = 1_048_576
# Below the database's limit, because it formats the JSON differently.
_TERMS_CHARACTERS_MAX = 60_000
# Fields of a contract that a file cannot set.
_NOT_SETTINGS = {
    "target": "is the name of the table: remove it",
    "version": "is assigned by `leasehold targets apply`: remove it",
}


class TargetsFileError(InvalidArgument):
    """A targets file is invalid; `problems` has one line for each problem."""

    def __init__(self, path: Path, problems: Sequence[Problem | str]) -> None:
        self.problems = [f"{path}: {problem}" for problem in problems]
        super().__init__("; ".join(self.problems))


def read_targets(path: Path) -> list[Contract]:
    """Read all targets of a file, or raise TargetsFileError with all its problems."""
    document = _read_toml(path)
    contracts: list[Contract] = []
    problems = [
        Problem((key,), "is not a known table; allowed: targets")
        for key in document
        if key != "targets"
    ]
    tables: object = document.get("targets", {})
    if not isinstance(tables, dict) or not tables:
        problems.append(
            Problem(("targets",), "must contain a table for each target, such as [targets.sms]")
        )
        tables = {}
    for name, table in cast("dict[str, object]", tables).items():
        contract = _read_target(name, table)
        if isinstance(contract, Contract):
            contracts.append(contract)
        else:
            problems += contract
    if problems:
        raise TargetsFileError(path, problems)
    return contracts


def read_executable_targets(path: Path) -> list[Contract]:
    """Read a file, and refuse targets whose intents no instance of this release would submit."""
    contracts = read_targets(path)
    idle = [
        Problem(("targets", _key(contract.target), "scope"), contract.unexecutable_reason)
        for contract in contracts
        if contract.unexecutable_reason is not None
    ]
    if idle:
        raise TargetsFileError(path, idle)
    return contracts


def write_target(contract: Contract) -> str:
    """Write a contract as a table of the file; reading it gives the same contract."""
    terms = contract.model_dump(mode="json", exclude_none=True)
    given = {name: value for name, value in terms.items() if name not in _NOT_SETTINGS}
    return "\n".join(_table_lines(("targets", contract.target), given)) + "\n"


def _read_toml(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
        if len(text) > _FILE_BYTES_MAX:
            raise TargetsFileError(path, [f"is larger than {_FILE_BYTES_MAX} bytes"])
        return tomllib.loads(text.decode())
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}; use --file for another file"
        raise TargetsFileError(path, [problem]) from None
    except UnicodeDecodeError:
        raise TargetsFileError(path, ["is not UTF-8 text, as TOML must be"]) from None
    except tomllib.TOMLDecodeError as error:
        raise TargetsFileError(path, [f"is not valid TOML: {error}"]) from None


def _read_target(name: str, table: object) -> Contract | list[Problem]:
    place = ("targets", _key(name))
    if not isinstance(table, dict):
        return [Problem(place, "must be a table, such as [targets.sms]")]
    settings = cast("dict[str, Any]", table)
    problems = [
        Problem((*place, key), problem) for key, problem in _NOT_SETTINGS.items() if key in settings
    ]
    if "gateway" not in settings:
        problems.append(
            Problem((*place, "gateway"), "is required: a table with kind http, ledger or python")
        )
    given = {key: value for key, value in settings.items() if key not in _NOT_SETTINGS}
    try:
        contract = Contract.model_validate({**given, "target": name})
    except ValidationError as error:
        problems += [_in_table(place, problem) for problem in contract_problems(error)]
        return problems
    if len(json.dumps(contract.terms())) > _TERMS_CHARACTERS_MAX:
        problems.append(
            Problem(place, f"has more than {_TERMS_CHARACTERS_MAX} characters of terms")
        )
    return problems or contract


def _in_table(place: tuple[str, ...], problem: Problem) -> Problem:
    # In the file, the target's name is the name of its table.
    inner = () if problem.place == ("target",) else problem.place
    return Problem((*place, *inner), problem.message)


def _table_lines(place: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """Write a table and its nested tables; plain values come first, as TOML requires."""
    yield f"[{'.'.join(map(_key, place))}]"
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield ""
            yield from _table_lines((*place, name), cast("dict[str, Any]", value))


def _key(name: str) -> str:
    """Quote a key unless TOML allows it bare; an unquoted dot would split it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
