"""`leasehold migrate`: bring a database to the schema of this release."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.options import DatabaseUrl, read_command_settings
from leasehold.cli.output import echo
from leasehold.domain.errors import InvalidArgument
from leasehold.store.database import schema_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.store.database import Database, SchemaStep


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
        echo(schema_script(), nl=False)
        return
    database = read_command_settings(database_url=database_url, migrates=False).database()
    if plan:
        _print_plan(database)
        return
    applied = database.migrate()
    result = f"Applied {_count(applied)}." if applied else "Nothing to do."
    echo(f"{result} The schema is at version {database.schema_version}.")


def _print_plan(database: Database) -> None:
    steps = database.plan_migration()
    for step in steps:
        echo(step.name)
    echo(f"Would apply {_count(steps)}." if steps else "Nothing to do.")


def _count(steps: Sequence[SchemaStep]) -> str:
    """Return for example: 1 migration, 30 functions, 2 views."""
    kinds = Counter(step.kind for step in steps)
    parts = ["roles and version tables"] if kinds["roles"] else []
    parts += [
        f"{kinds[kind]} {kind}{'s' if kinds[kind] > 1 else ''}"
        for kind in ("migration", "function", "view")
        if kinds[kind]
    ]
    return ", ".join(parts)
