"""`leasehold tokens`: make, list and revoke the tokens of the HTTP API."""

from __future__ import annotations

import asyncio
import getpass
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from leasehold.cli.migrate import DatabaseUrl  # noqa: TC001 (Typer reads the annotation)
from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.token import ApiToken, Scope, new_token, token_hash
from leasehold.domain.verdict import RevokeVerdict
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

_OWNER = "leasehold_owner"
_PAGE = 1000
_PIPE_WIDTH = 200  # where there is no window to fit into

app = typer.Typer(
    help="Make, list and revoke tokens of the HTTP API. Needs the role leasehold_owner.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(help="What the ledger calls whoever uses it.", show_default=False)
]
Operator = Annotated[
    str | None,
    typer.Option(
        envvar="LEASEHOLD_OPERATOR", help="In whose name.", show_default="your login name"
    ),
]


@app.command()
def create(
    name: Name,
    database_url: DatabaseUrl = None,
    *,
    scopes: Annotated[
        list[Scope],
        typer.Option("--scope", help="What it may do; give it again for more.", show_default=False),
    ],
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Only for this target; give it again for more.",
            show_default="all targets",
        ),
    ] = None,
    operator: Operator = None,
) -> None:
    """Make a token and print it, once: only its hash is kept.

    Standard output has the token and nothing else, for scripts.
    """
    token = new_token()
    made, unknown = asyncio.run(
        _create(database_url, name, token, scopes, targets or None, _name(operator))
    )
    typer.echo(
        f"Made {made.name}: {_listed(made.scopes)}; targets: {_targets(made)}."
        " Keep it now, it cannot be shown again:",
        err=True,
    )
    typer.echo(token)
    if unknown:
        typer.echo(f"No contract is published yet for {', '.join(unknown)}.", err=True)


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="The revoked ones too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the tokens that are in force; never the tokens themselves."""
    found = asyncio.run(_list(database_url))
    shown = [_row(one) for one in found if everything or one.revoked_at is None]
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    if not shown:
        typer.echo("none found")
        return
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    table = Table(box=None, pad_edge=False)
    for column in shown[0]:
        table.add_column(column, overflow="fold")
    for one in shown:
        table.add_row(*(_cell(value) for value in one.values()))
    console.print(table)


@app.command()
def revoke(name: Name, database_url: DatabaseUrl = None, *, operator: Operator = None) -> None:
    """End a token, for ever. Running instances refuse it within seconds."""
    verdict = asyncio.run(_revoke(database_url, name, _name(operator)))
    if verdict is RevokeVerdict.NOT_FOUND:
        raise InvalidArgument(f"no token is named {name}; see `leasehold tokens list`")
    typer.echo(f"{name}: {verdict}")


async def _create(
    database_url: str | None,
    name: str,
    token: str,
    scopes: Sequence[Scope],
    targets: Sequence[str] | None,
    operator: str,
) -> tuple[ApiToken, list[str]]:
    """Give the token, and those of its targets that nothing can be enqueued for yet."""
    async with _store(database_url) as store:
        made = await store.create_token(
            name=name,
            token_hash=token_hash(token),
            scopes=set(scopes),
            targets=None if targets is None else set(targets),
            operator=operator,
        )
        if made.targets is None:
            return made, []
        published = {one.target for one in await store.read_published_contracts()}
        return made, sorted(made.targets - published)


async def _list(database_url: str | None) -> list[ApiToken]:
    found: list[ApiToken] = []
    async with _store(database_url) as store:
        while page := await store.list_tokens(found[-1].name if found else None, _PAGE):
            found += page
    return found


async def _revoke(database_url: str | None, name: str, operator: str) -> RevokeVerdict:
    async with _store(database_url) as store:
        return await store.revoke_token(name, operator)


@asynccontextmanager
async def _store(database_url: str | None) -> AsyncGenerator[PostgresStore]:
    settings = read_settings(
        database_url=database_url, application_name="leasehold tokens", pool_size_max=1
    )
    pool = replace(settings.pool(), role=_OWNER)
    async with PostgresStore(settings.required_database_url(), pool) as store:
        yield store


def _row(token: ApiToken) -> dict[str, str | list[str] | None]:
    return {
        "name": token.name,
        "scopes": [scope for scope in Scope if scope in token.scopes],
        "targets": None if token.targets is None else sorted(token.targets),
        "created_at": f"{token.created_at:%Y-%m-%d %H:%M:%S%z}",
        "created_by": token.created_by,
        "revoked_at": token.revoked_at and f"{token.revoked_at:%Y-%m-%d %H:%M:%S%z}",
        "revoked_by": token.revoked_by,
    }


def _cell(value: str | list[str] | None) -> str:
    return ", ".join(value) if isinstance(value, list) else value or ""


def _listed(scopes: frozenset[Scope]) -> str:
    return ", ".join(scope for scope in Scope if scope in scopes)


def _targets(token: ApiToken) -> str:
    return "all" if token.targets is None else ", ".join(sorted(token.targets))


def _name(operator: str | None) -> str:
    if operator is not None:
        return operator
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise InvalidArgument("this user has no name: give --operator") from None
