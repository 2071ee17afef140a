"""The command `leasehold`: the list of commands, and how their errors are printed.

A command's module is imported only when that command runs, so `leasehold --help` is fast. This
module therefore repeats the first line of each command's help.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from leasehold.cli.output import echo
from leasehold.domain.errors import LeaseholdError


class Entry(NamedTuple):
    """Where a command is defined, and the first paragraph of its help."""

    module: str
    name: str
    summary: str


COMMANDS = {
    "demo": Entry(
        "leasehold.cli.demo",
        "demo",
        "Run a demo on a private database: workers, an unreliable gateway and sample intents.",
    ),
    "doctor": Entry(
        "leasehold.cli.doctor",
        "doctor",
        "Check the database: connection, TLS, schema, roles, durability, clock, instances.",
    ),
    "enqueue": Entry(
        "leasehold.cli.enqueue",
        "enqueue",
        "Enqueue one intent and print its id, or enqueue a file of intents and print a summary.",
    ),
    "intents": Entry(
        "leasehold.cli.intents", "app", "List and show intents; cancel, resolve or redrive them."
    ),
    "migrate": Entry(
        "leasehold.cli.migrate",
        "migrate",
        "Create or update the database schema. Safe to run at any time, also concurrently.",
    ),
    "prune": Entry(
        "leasehold.cli.prune",
        "prune",
        "Delete whole months of finished intents with their ledger. Needs role leasehold_owner.",
    ),
    "restored": Entry(
        "leasehold.cli.restored",
        "restored",
        "Say that an older state of the database was restored. Run it before any worker starts.",
    ),
    "sandbox": Entry(
        "leasehold.cli.sandbox",
        "sandbox",
        "Run a test gateway for each guarantee class, with adjustable faults. Prints its URL.",
    ),
    "serve": Entry(
        "leasehold.cli.serve",
        "serve",
        "Run an instance with the HTTP API: accept and submit intents, until SIGTERM or Ctrl-C.",
    ),
    "streams": Entry(
        "leasehold.cli.streams",
        "app",
        "List streams that are blocked; show, pause or resume a stream, or skip its head.",
    ),
    "targets": Entry(
        "leasehold.cli.targets",
        "app",
        "Check, publish and show targets: where intents are sent, and on which terms.",
    ),
    "tokens": Entry(
        "leasehold.cli.tokens",
        "app",
        "Create, list and revoke tokens of the HTTP API. Needs role leasehold_owner.",
    ),
    "worker": Entry(
        "leasehold.cli.worker",
        "worker",
        "Run an instance without the HTTP API: submit due intents, until SIGTERM or Ctrl-C.",
    ),
}


class _Commands(TyperGroup):
    """Imports the command that runs, and prints a LeaseholdError as one red line.

    A traceback is always a defect.
    """

    # The types of these two methods are private to Typer.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except LeaseholdError as error:
            echo(f"Error: {' '.join(str(error).split())}", color=typer.colors.RED, err=True)
            raise typer.Exit(code=1) from None


# Pretty exceptions stay off: they can print local variables, and one is the database password.
app = typer.Typer(
    cls=_Commands,
    help="Submit intents (payments, webhooks, ...) to other systems, coordinated by database"
    " leases.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib import metadata

        echo(f"leasehold {metadata.version('leasehold')}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  (Typer calls it)
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def load_command(name: str) -> Any:  # noqa: ANN401 (Typer's type is private)
    """Import a command and build it with Typer, from a function or from a group."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module), entry.name)
    parent = typer.Typer()
    parent.callback()(_placeholder)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def _placeholder() -> None:
    """Stand for a command in the overview and in "Did you mean ...?" until it is imported."""


for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.summary)(_placeholder)
