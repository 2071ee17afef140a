"""leasehold.toml: the targets that a team keeps under version control, read and written.

Reading finds all problems before anything is done with any target; each is told by the file, the
key and what is allowed there.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from leasehold.domain.contract import Contract, contract_problems
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FILE_NAME = "leasehold.toml"
_FILE_BYTES_MAX = 1_048_576
# The longest terms that the database takes, and a reserve for how it spells them.
_TERMS_CHARACTERS_MAX = 60_000
_GIVEN_BY_THE_TABLE = frozenset({"target", "version"})


class TargetsFileError(InvalidArgument):
    """A file of targets cannot be used. `problems` has one line each."""

    def __init__(self, path: Path, problems: Sequence[Problem | str]) -> None:
        self.problems = [f"{path}: {problem}" for problem in problems]
        super().__init__("; ".join(self.problems))


def read_targets(path: Path) -> list[Contract]:
    """Read all targets of a file, or raise TargetsFileError with everything that is wrong."""
    document = _read_toml(path)
    contracts: list[Contract] = []
    problems = [
        Problem((key,), "is not a table of this file; allowed: targets")
        for key in document
        if key != "targets"
    ]
    tables: object = document.get("targets", {})
    if not isinstance(tables, dict) or not tables:
        problems.append(Problem(("targets",), "must hold a table for each target: [targets.sms]"))
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


def write_target(contract: Contract) -> str:
    """Write a contract as the table that reads back as the same terms."""
    terms = contract.model_dump(mode="json", exclude_none=True)
    given = {name: value for name, value in terms.items() if name not in _GIVEN_BY_THE_TABLE}
    return "\n".join(_table_lines(("targets", contract.target), given)) + "\n"


def _read_toml(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
        if len(text) > _FILE_BYTES_MAX:
            raise TargetsFileError(path, [f"is over {_FILE_BYTES_MAX} bytes"])
        return tomllib.loads(text.decode())
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}; name another with --file"
        raise TargetsFileError(path, [why]) from None
    except UnicodeDecodeError:
        raise TargetsFileError(path, ["is not text in UTF-8, as TOML must be"]) from None
    except tomllib.TOMLDecodeError as error:
        raise TargetsFileError(path, [f"is not valid TOML: {error}"]) from None


def _read_target(name: str, table: object) -> Contract | list[Problem]:
    place = ("targets", _key(name))
    if not isinstance(table, dict):
        return [Problem(place, "must be a table, such as [targets.sms]")]
    settings = cast("dict[str, Any]", table)
    problems = [
        Problem((*place, key), "is not a setting; the table's name and the database say it")
        for key in settings
        if key in _GIVEN_BY_THE_TABLE
    ]
    if "gateway" not in settings:
        problems.append(Problem((*place, "gateway"), "is needed: a table with kind http or python"))
    given = {key: value for key, value in settings.items() if key not in _GIVEN_BY_THE_TABLE}
    try:
        contract = Contract.model_validate({**given, "target": name})
    except ValidationError as error:
        problems += [_placed(place, problem) for problem in contract_problems(error)]
        return problems
    if len(json.dumps(contract.terms())) > _TERMS_CHARACTERS_MAX:
        problems.append(Problem(place, f"is over {_TERMS_CHARACTERS_MAX} characters of terms"))
    return problems or contract


def _placed(place: tuple[str, ...], problem: Problem) -> Problem:
    # A target has no setting of this name in the file: it is the table's.
    inner = () if problem.place == ("target",) else problem.place
    return Problem((*place, *inner), problem.message)


def _table_lines(place: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    """Write a table and the tables in it; plain values stand first, as TOML asks for."""
    yield f"[{'.'.join(map(_key, place))}]"
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield ""
            yield from _table_lines((*place, name), cast("dict[str, Any]", value))


def _key(name: str) -> str:
    """Write a key bare where TOML allows it: a dot in a name would part it in two."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
