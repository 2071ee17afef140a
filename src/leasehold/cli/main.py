"""The command `leasehold`: puts the groups of commands together and prints errors for people."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from leasehold.cli.demo import demo
from leasehold.cli.enqueue import enqueue
from leasehold.cli.intents import app as intents_app
from leasehold.cli.migrate import migrate
from leasehold.cli.retention import prune
from leasehold.cli.sandbox import sandbox
from leasehold.cli.targets import app as targets_app
from leasehold.cli.worker import worker
from leasehold.domain.errors import LeaseholdError


class _Commands(TyperGroup):
    """Prints what Leasehold raises on purpose as one red line; a traceback would be a defect."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (Typer keeps the type of ctx to itself)
        try:
            return super().invoke(ctx)
        except LeaseholdError as error:
            typer.secho(f"Error: {' '.join(str(error).split())}", fg=typer.colors.RED, err=True)
            raise typer.Exit(code=1) from None


# No pretty exceptions: they can print local variables, and one of them is the database's password.
app = typer.Typer(
    cls=_Commands,
    help="Submit things to the world outside a database, under leases that the database grants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"leasehold {metadata.version('leasehold')}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  (Typer calls it)
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None: ...


app.command()(demo)
app.command()(enqueue)
app.add_typer(intents_app, name="intents")
app.command()(migrate)
app.command()(prune)
app.command()(sandbox)
app.add_typer(targets_app, name="targets")
app.command()(worker)
