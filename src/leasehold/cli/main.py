"""The command `leasehold`: puts the groups of commands together and prints errors for people.

The module of a command is imported when that command is run, so that nobody waits for what only
another command needs; what the overview says of each stands here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from leasehold.domain.errors import LeaseholdError


class Entry(NamedTuple):
    """Where a command is, and the first paragraph of its own help."""

    module: str
    name: str
    told: str


COMMANDS = {
    "demo": Entry(
        "leasehold.cli.demo",
        "demo",
        "Run workers, a gateway that misbehaves a little and a trickle of intents, and show them.",
    ),
    "enqueue": Entry(
        "leasehold.cli.enqueue",
        "enqueue",
        "Enqueue one intent and print its id, or a file of intents and print what became of them.",
    ),
    "intents": Entry("leasehold.cli.intents", "app", "Look at intents, and intervene."),
    "migrate": Entry(
        "leasehold.cli.migrate",
        "migrate",
        "Create or update the schema. Safe to run at any time, and many times at once.",
    ),
    "prune": Entry(
        "leasehold.cli.retention",
        "prune",
        "Forget whole months of finished intents, with their ledger."
        " Needs the role leasehold_owner.",
    ),
    "sandbox": Entry(
        "leasehold.cli.sandbox",
        "sandbox",
        "Run a gateway of each class, with a dial for trouble. The first line says where it is.",
    ),
    "serve": Entry(
        "leasehold.cli.serve",
        "serve",
        "Take intents over HTTP and submit them, until SIGTERM or Ctrl-C.",
    ),
    "targets": Entry(
        "leasehold.cli.targets",
        "app",
        "Check, publish and show targets: where intents go, and under which terms.",
    ),
    "tokens": Entry(
        "leasehold.cli.tokens",
        "app",
        "Make, list and revoke tokens of the HTTP API. Needs the role leasehold_owner.",
    ),
    "worker": Entry(
        "leasehold.cli.worker",
        "worker",
        "Claim due items and submit them, until SIGTERM or Ctrl-C; a second one is immediate.",
    ),
}


class _Commands(TyperGroup):
    """Loads the command that is run, and prints what Leasehold raises on purpose as one red line.

    A traceback would be a defect.
    """

    # Typer keeps the types of these two to itself.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
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
        from importlib import metadata

        typer.echo(f"leasehold {metadata.version('leasehold')}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  (Typer calls it)
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None: ...


def load_command(name: str) -> Any:  # noqa: ANN401
    """Import a command, as Typer makes it of a function or of a group."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module), entry.name)
    parent = typer.Typer()
    parent.callback()(_stand_in)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def _stand_in() -> None:
    """Take a command's place in the overview, and in what is proposed for a mistyped one."""


for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.told)(_stand_in)
