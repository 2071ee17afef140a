"""`leasehold targets`: check and publish leasehold.toml, and show what is published.

The parser reports all problems of a file at once, each with its key and what is allowed there.
Only these commands read the file; instances read the published contracts.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from leasehold.cli.options import (
    DatabaseUrl,
    Operator,
    operator_name,
    read_command_settings,
    read_options,
    use_app_dir,
    warn,
)
from leasehold.cli.output import echo
from leasehold.cli.tables import print_table
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.gateway_terms import known_kinds
from leasehold.domain.refused_terms import find_problems
from leasehold.domain.terms import Problem
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.registry import Contract, address_problems, open_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leasehold.store.database import Database
    from leasehold.store.reader_rows import PublishedContract

FILE_NAME = "leasehold.toml"
_FILE_BYTES_MAX = 1_048_576
# Below the database's limit, because it formats the JSON differently.
_TERMS_CHARACTERS_MAX = 60_000
# Fields of a contract that a file cannot set.
_NOT_SETTINGS = {
    "target": "is the name of the table: remove it",
    "version": "is assigned by `leasehold targets apply`: remove it",
}

app = typer.Typer(
    help="Check, publish and show targets: where intents are sent, and on which terms.",
    no_args_is_help=True,
)

TargetsFile = Annotated[Path, typer.Option("--file", help="The file that defines the targets.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AppDir = Annotated[
    Path | None, typer.Option(help="Folder of Python code.", show_default="the working directory")
]


@app.command()
def check(file: TargetsFile = Path(FILE_NAME), *, app_dir: AppDir = None) -> None:
    """Check a targets file and print all its problems. Needs no database.

    A Python function that cannot be imported here is only a warning: the instances import it.
    """
    contracts = _read(file)
    use_app_dir(read_options(app_dir=app_dir).app_dir)
    _warn_of_functions(contracts)
    _warn_of_pipelines(contracts)
    _warn_of_short_leases(contracts)
    names = ", ".join(contract.target for contract in contracts)
    echo(f"{file}: {len(contracts)} valid target{'s' * (len(contracts) > 1)}: {names}")


@app.command()
def apply(
    file: TargetsFile = Path(FILE_NAME),
    database_url: DatabaseUrl = None,
    *,
    operator: Operator = None,
) -> None:
    """Publish changed targets as new versions. Intents keep the version they were accepted with.

    Publishes nothing unless the whole file is valid. Needs the role leasehold_operator.
    """
    contracts = _read(file)
    asyncio.run(_apply(_database(database_url), contracts, operator_name(operator), file))


@app.command("list")
def list_targets(database_url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """List the targets with their current terms."""
    published = asyncio.run(_read_all(_database(database_url)))
    if as_json:
        echo(json.dumps([_summary(one) for one in published], indent=2))
    elif published:
        columns = ("target", "version", "scope", "guarantee", "gateway", "published", "by")
        print_table(columns, (_summary(one).values() for one in published))
    else:
        echo(f"No targets found: define them in {FILE_NAME} and run `leasehold targets apply`.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the target.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Version to show.", show_default="the current one")
    ] = None,
    database_url: DatabaseUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the terms of a target, with all defaults, in the format of the targets file."""
    published = asyncio.run(_read_one(_database(database_url), name, version))
    if as_json:
        stored = published.terms.raw.decode()  # with every digit, but in ASCII as all our JSON
        echo(re.sub(r"[^ -~]", lambda found: json.dumps(found[0])[1:-1], stored))
        return
    echo(
        f"# {published.target}, version {published.version},"
        f" published {published.published_at:%Y-%m-%d %H:%M:%S%z} by {published.published_by}"
    )
    contract = published.contract()
    if contract.gateway is None:
        echo("# It has no gateway, so no instance submits its intents.")
    echo(write_target(contract), nl=False)


def _read(file: Path) -> list[Contract]:
    """Read the file, or print one line per problem and exit."""
    try:
        return read_targets(file)
    except TargetsFileError as error:
        for problem in error.problems:
            echo(f"Error: {problem}", color=typer.colors.RED, err=True)
        raise typer.Exit(code=1) from None


def _warn_of_functions(contracts: Sequence[Contract]) -> None:
    for contract in contracts:
        if not contract.calls_outside:  # so it needs nothing but code, which may be here
            try:
                open_gateway(contract, environment=os.environ)
            except GatewayMisconfigured as error:
                warn(f"{contract.target}: {error}")


def _warn_of_short_leases(contracts: Sequence[Contract]) -> None:
    for contract in contracts:
        least = 2 * contract.call_timeout_seconds
        if contract.calls_outside and contract.lease_seconds < least:
            warn(
                f"{contract.target}: lease_seconds ({contract.lease_seconds:g}) is less than twice "
                f"call_timeout_seconds ({least:g}): a pause during a slow call costs an attempt"
            )


def _warn_of_pipelines(contracts: Sequence[Contract]) -> None:
    for contract in contracts:
        if contract.pipeline_max is not None and contract.pipeline_max > 1:
            warn(
                f"{contract.target}: with pipeline_max ({contract.pipeline_max}) intents are"
                " submitted before those in front of them are confirmed; if one of these fails,"
                " they are out already"
            )


def _database(url: str | None) -> Database:
    settings = read_command_settings(database_url=url, application_name="leasehold targets")
    return settings.database()


async def _apply(
    unopened: Database, contracts: Sequence[Contract], operator: str, file: Path
) -> None:
    if unserved := {one.scope for one in contracts} - unopened.scopes:
        raise InvalidArgument(f"this database serves no targets of scope {', '.join(unserved)}")
    async with unopened as database:
        store = database.store
        before = {one.target: one.version for one in await store.read_published_contracts()}
        for contract in contracts:
            version = await store.publish_contract(contract.target, contract.terms(), operator)
            echo(_applied(contract.target, version, before.get(contract.target)))
    for target in sorted(before.keys() - {contract.target for contract in contracts}):
        echo(f"{target}: not in {file}, unchanged (version {before[target]})")


def _applied(target: str, version: int, before: int | None) -> str:
    if before is None:
        return f"{target}: version {version} (new)"
    if version == before:
        return f"{target}: unchanged (version {version})"
    return f"{target}: version {version} (was {before})"


async def _read_all(unopened: Database) -> list[PublishedContract]:
    async with unopened as database:
        return await database.store.read_published_contracts()


async def _read_one(unopened: Database, name: str, version: int | None) -> PublishedContract:
    async with unopened as database:
        store = database.store
        published = await store.read_published_contract(name, version)
        if published is not None:
            return published
        known = [one.target for one in await store.read_published_contracts()]
    if name in known:
        raise InvalidArgument(f"target {name} has no version {version}")
    raise InvalidArgument(
        f"target {name} is not published; published targets: {', '.join(known) or 'none'}"
    )


def _summary(published: PublishedContract) -> dict[str, str | int]:
    terms = published.terms.value()
    return {
        "target": published.target,
        "version": published.version,
        "scope": terms["scope"],
        "guarantee": terms["guarantee"],
        "gateway": _gateway(published),
        "published_at": f"{published.published_at:%Y-%m-%d %H:%M:%S%z}",
        "published_by": published.published_by,
    }


def _gateway(published: PublishedContract) -> str:
    try:
        gateway = published.contract().gateway
    except InvalidArgument as error:
        return f"unreadable: {error}"
    if gateway is None:
        return "none"
    return f"{gateway.kind} {gateway.destination}"


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
        *kinds, last = known_kinds()
        needed = f"is required: a table with kind {', '.join(kinds)} or {last}"
        problems.append(Problem((*place, "gateway"), needed))
    given = {key: value for key, value in settings.items() if key not in _NOT_SETTINGS}
    found = find_problems(Contract, {**given, "target": name})
    problems += [_in_table(place, problem) for problem in found]
    problems += [
        Problem((*place, "gateway", setting), why)
        for setting, why in address_problems(given.get("gateway"))
    ]
    if problems:
        return problems
    contract = Contract.model_validate({**given, "target": name})
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
