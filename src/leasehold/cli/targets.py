"""`leasehold targets`: check a file of targets, publish it, and look at what is published."""

from __future__ import annotations

import asyncio
import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from leasehold.cli.migrate import DatabaseUrl  # noqa: TC001 (Typer reads the annotation)
from leasehold.cli.targets_file import FILE_NAME, TargetsFileError, read_targets, write_target
from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.contract import Contract
    from leasehold.store.rows import PublishedContract

_PIPE_WIDTH = 200  # where there is no window to fit into

app = typer.Typer(
    help="Check, publish and show targets: where intents go, and under which terms.",
    no_args_is_help=True,
)

TargetsFile = Annotated[Path, typer.Option("--file", help="The file of targets.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Operator = Annotated[
    str | None,
    typer.Option(
        envvar="LEASEHOLD_OPERATOR",
        help="In whose name to publish.",
        show_default="your login name",
    ),
]


@app.command()
def check(file: TargetsFile = Path(FILE_NAME)) -> None:
    """Say everything that is wrong with a file of targets. Needs no database."""
    contracts = _read(file)
    names = ", ".join(contract.target for contract in contracts)
    typer.echo(f"{file}: {len(contracts)} target{'s' * (len(contracts) > 1)}, all good: {names}")


@app.command()
def apply(
    file: TargetsFile = Path(FILE_NAME),
    database_url: DatabaseUrl = None,
    *,
    operator: Operator = None,
) -> None:
    """Publish what has changed as new versions; intents keep the version they were accepted under.

    Nothing is published unless the whole file is good. Needs the role leasehold_operator.
    """
    contracts = _read(file)
    with_name = operator or _login_name()
    asyncio.run(_apply(_store(database_url), contracts, with_name, file))


@app.command("list")
def list_targets(database_url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """List the targets with their current terms."""
    published = asyncio.run(_read_all(_store(database_url)))
    if as_json:
        typer.echo(json.dumps([_summary(one) for one in published], indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    table = Table(box=None, pad_edge=False)
    for column in ("target", "version", "scope", "guarantee", "gateway", "published", "by"):
        table.add_column(column, overflow="fold")
    for one in published:
        table.add_row(*map(str, _summary(one).values()))
    console.print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The target.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="Another version.", show_default="the current one")
    ] = None,
    database_url: DatabaseUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the terms of a target, complete with defaults, as a file of targets would say them."""
    published = asyncio.run(_read_one(_store(database_url), name, version))
    if as_json:
        typer.echo(json.dumps(published.terms.value(), indent=2))
        return
    typer.echo(
        f"# {published.target}, version {published.version},"
        f" published {published.published_at:%Y-%m-%d %H:%M:%S%z} by {published.published_by}"
    )
    contract = published.contract()
    if contract.gateway is None:
        typer.echo("# Without a gateway, so no executor of this release serves it.")
    typer.echo(write_target(contract), nl=False)


def _read(file: Path) -> list[Contract]:
    """Read the file, or print one line for each problem and leave."""
    try:
        return read_targets(file)
    except TargetsFileError as error:
        for problem in error.problems:
            typer.secho(f"Error: {problem}", fg=typer.colors.RED, err=True)
        raise typer.Exit(code=1) from None


def _store(database_url: str | None) -> PostgresStore:
    settings = read_settings(database_url=database_url, application_name="leasehold targets")
    return PostgresStore(settings.required_database_url(), settings.pool())


async def _apply(
    unopened: PostgresStore, contracts: Sequence[Contract], operator: str, file: Path
) -> None:
    async with unopened as store:
        before = {one.target: one.version for one in await store.read_published_contracts()}
        for contract in contracts:
            version = await store.publish_contract(contract.target, contract.terms(), operator)
            typer.echo(_applied(contract.target, version, before.get(contract.target)))
    for target in sorted(before.keys() - {contract.target for contract in contracts}):
        typer.echo(f"{target}: not in {file}, left as it is (version {before[target]})")


def _applied(target: str, version: int, before: int | None) -> str:
    if before is None:
        return f"{target}: version {version} (new)"
    if version == before:
        return f"{target}: unchanged (version {version})"
    return f"{target}: version {version} (was {before})"


async def _read_all(unopened: PostgresStore) -> list[PublishedContract]:
    async with unopened as store:
        return await store.read_published_contracts()


async def _read_one(unopened: PostgresStore, name: str, version: int | None) -> PublishedContract:
    async with unopened as store:
        published = await store.read_published_contract(name, version)
        if published is not None:
            return published
        known = [one.target for one in await store.read_published_contracts()]
    which = f"{name}, version {version}," if version and name in known else name
    raise InvalidArgument(
        f"no contract of {which} is published; targets: {', '.join(known) or 'none'}"
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
    return f"http {gateway.url}" if gateway.kind == "http" else f"python {gateway.function}"


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        raise InvalidArgument("say in whose name to publish: --operator NAME") from None
