"""`leasehold tokens`: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.options import DatabaseUrl, Operator, operator_name, read_command_settings
from leasehold.cli.output import echo
from leasehold.cli.tables import print_table
from leasehold.domain.api_token import ApiToken, TokenScope, new_token, token_hash
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.verdict import RevokeVerdict
from leasehold.store.database import database_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.store.database import Database

_OWNER_ROLE = "leasehold_owner"
_PAGE_SIZE = 1000

app = typer.Typer(
    help="Create, list and revoke tokens of the HTTP API. Needs role leasehold_owner.",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the token; its actions are recorded under it.", show_default=False
    ),
]


@app.command()
def create(
    name: Name,
    database_url: DatabaseUrl = None,
    *,
    scopes: Annotated[
        list[TokenScope],
        typer.Option("--scope", help="Allowed scope; repeat for more.", show_default=False),
    ],
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target", help="Allowed target; repeat for more.", show_default="all targets"
        ),
    ] = None,
    operator: Operator = None,
) -> None:
    """Create a token and print it. It is shown only once: the database keeps a hash.

    Stdout has the token and nothing else, for scripts.
    """
    token = new_token()
    created, unknown = asyncio.run(
        _create(database_url, name, token, scopes, targets or None, operator_name(operator))
    )
    echo(
        f"Created token {created.name} (scopes: {_scopes(created)}; targets: {_targets(created)})."
        " Store it now, it cannot be shown again:",
        err=True,
    )
    echo(token)
    if unknown:
        echo(f"Note: no contract is published yet for {', '.join(unknown)}.", err=True)


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Include revoked tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the active tokens by name. The tokens themselves are not stored."""
    found = asyncio.run(_list(database_url))
    rows = [_row(one) for one in found if everything or one.revoked_at is None]
    if as_json:
        echo(json.dumps(rows, indent=2))
    elif rows:
        print_table(rows[0], (map(_cell, row.values()) for row in rows))
    else:
        echo("No tokens found.")


@app.command()
def revoke(name: Name, database_url: DatabaseUrl = None, *, operator: Operator = None) -> None:
    """Revoke a token for good. Running instances refuse it within seconds."""
    verdict = asyncio.run(_revoke(database_url, name, operator_name(operator)))
    if verdict is RevokeVerdict.NOT_FOUND:
        raise InvalidArgument(f"no token is named {name!r}: see `leasehold tokens list`")
    echo(f"{name}: {verdict}")


async def _create(
    database_url: str | None,
    name: str,
    token: str,
    scopes: Sequence[TokenScope],
    targets: Sequence[str] | None,
    operator: str,
) -> tuple[ApiToken, list[str]]:
    """Create the token; also return those of its targets that have no contract yet."""
    async with _database(database_url) as database:
        created = await database.store.create_token(
            name=name,
            token_hash=token_hash(token),
            scopes=set(scopes),
            targets=None if targets is None else set(targets),
            operator=operator,
        )
        if created.targets is None:
            return created, []
        published = {one.target for one in await database.store.read_published_contracts()}
        return created, sorted(created.targets - published)


async def _list(database_url: str | None) -> list[ApiToken]:
    found: list[ApiToken] = []
    async with _database(database_url) as database:
        while page := await database.store.list_tokens(
            found[-1].name if found else None, _PAGE_SIZE
        ):
            found += page
    return found


async def _revoke(database_url: str | None, name: str, operator: str) -> RevokeVerdict:
    async with _database(database_url) as database:
        return await database.store.revoke_token(name, operator)


def _database(database_url: str | None) -> Database:
    settings = read_command_settings(
        database_url=database_url, application_name="leasehold tokens", pool_size_max=1
    )
    pool = replace(settings.pool(), role=_OWNER_ROLE)
    return database_at(settings.required_database_url(), pool)


def _row(token: ApiToken) -> dict[str, str | list[str] | None]:
    return {
        "name": token.name,
        "scopes": [scope for scope in TokenScope if scope in token.scopes],
        "targets": None if token.targets is None else sorted(token.targets),
        "created_at": f"{token.created_at:%Y-%m-%d %H:%M:%S%z}",
        "created_by": token.created_by,
        "revoked_at": token.revoked_at and f"{token.revoked_at:%Y-%m-%d %H:%M:%S%z}",
        "revoked_by": token.revoked_by,
    }


def _cell(value: str | list[str] | None) -> str:
    return ", ".join(value) if isinstance(value, list) else value or ""


def _scopes(token: ApiToken) -> str:
    return ", ".join(scope for scope in TokenScope if scope in token.scopes)


def _targets(token: ApiToken) -> str:
    return "all" if token.targets is None else ", ".join(sorted(token.targets))
