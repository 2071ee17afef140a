"""`leasehold doctor`: look at a database and say what is wrong with it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from leasehold.cli.options import DatabaseUrl, read_command_settings
from leasehold.cli.output import echo

_COLORS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(
    database_url: DatabaseUrl = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of checks.")] = False,
) -> None:
    """Check the database: connection, TLS, schema, roles, durability, clock, instances.

    Changes nothing. Prints one line per check: ok, warn or fail, and what to do. Exits with 1 if a
    check fails.
    """
    settings = read_command_settings(database_url=database_url, migrates=False)
    checks = settings.database().examine()
    if as_json:
        echo(json.dumps([one._asdict() for one in checks], indent=2))
    else:
        for one in checks:
            advice = f": {one.advice}" if one.advice else ""
            echo(f"{one.level:<4}  {one.name:<11} {one.found}{advice}", color=_COLORS[one.level])
    if any(one.level == "fail" for one in checks):
        raise typer.Exit(code=1)
