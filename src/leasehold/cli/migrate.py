"""`leasehold migrate`: bring a database to the schema of this release."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.options import DatabaseUrl, read_command_settings
from leasehold.cli.output import echo
from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres import migrate as migrations
from leasehold.store.postgres.database_url import connect

if TYPE_CHECKING:
    from collections.abc import Sequence


def migrate(
    database_url: DatabaseUrl = None,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="List what would be applied; change no schema.")
    ] = False,
    print_script: Annotated[
        bool,
        typer.Option("--print", help="Print the whole schema as SQL for a DBA; change nothing."),
    ] = False,
) -> None:
    """Create or update the database schema. Safe to run at any time, also concurrently."""
    if plan and print_script:
        raise InvalidArgument("--plan and --print cannot be used together")
    if print_script:
        echo(migrations.script(), nl=False)
        return
    settings = read_command_settings(database_url=database_url, migrates=False)
    address = settings.required_database_url()
    if plan:
        _print_plan(address)
        return
    applied = migrations.migrate(address)
    version = migrations.SqlFiles().version
    result = f"Applied {_count(applied)}." if applied else "Nothing to do."
    echo(f"{result} The schema is at version {version}.")


def _print_plan(address: str) -> None:
    with connect(address, application_name="leasehold migrate") as connection:
        steps = migrations.plan(connection)
    for step in steps:
        echo(step.name)
    echo(f"Would apply {_count(steps)}." if steps else "Nothing to do.")


def _count(steps: Sequence[migrations.Step]) -> str:
    """Return for example: 1 migration, 30 functions, 2 views."""
    kinds = Counter(step.kind for step in steps)
    parts = ["roles and version tables"] if kinds["roles"] else []
    parts += [
        f"{kinds[kind]} {kind}{'s' if kinds[kind] > 1 else ''}"
        for kind in ("migration", "function", "view")
        if kinds[kind]
    ]
    return ", ".join(parts)
