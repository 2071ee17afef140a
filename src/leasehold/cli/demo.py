"""`leasehold demo`: the product at work, on a private database and against a gateway of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from leasehold.demo.database import own_database
from leasehold.demo.play import Plan, Play
from leasehold.demo.signals import Interruption
from leasehold.demo.view import Teller
from leasehold.embedded.server import EmbeddedPostgres, default_data_dir
from leasehold.observe.logs import configure_logs
from leasehold.store.postgres.migrate import migrate

if TYPE_CHECKING:
    from leasehold.demo.audit import Audit

DEFAULT_SECONDS = 20.0


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the private database lies.", show_default="your data folder"),
    ] = None,
    *,
    for_seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            min=1,
            max=86_400,
            metavar="SECONDS",
            help="Enqueue for so long, wait until all is done, and end with a summary.",
            show_default=f"until Ctrl-C; with --kill, or without a terminal, {DEFAULT_SECONDS:g}",
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill a worker in the middle, and see it recovered.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Worker processes.")] = 2,
    rate: Annotated[float, typer.Option(min=0.1, max=200, help="Sample intents per second.")] = 4.0,
) -> None:
    """Run a demo on a private database: workers, an unreliable gateway and sample intents.

    In a terminal it shows a live view until Ctrl-C. Where stdin is no terminal it ends by itself
    after 20 seconds; where stdout is none it prints lines. Exit code 0 only if no intent was lost
    and none had its effect twice.
    """
    interruption = Interruption()
    seconds = seconds_to_play(for_seconds, is_kill=kill, is_terminal=sys.stdin.isatty())
    plan = Plan(seconds=seconds, is_kill=kill, workers=workers, rate_per_second=rate)
    is_live = sys.stdout.isatty() and not Console().is_dumb_terminal
    teller = Teller(is_live=is_live, on_closed=interruption.request)
    try:
        found = _perform(plan, data_dir, teller, interruption)
    except KeyboardInterrupt:
        found = None
    if found is None:
        teller.write("stopped")
    elif not found.is_clean:
        raise typer.Exit(code=1)


def seconds_to_play(asked: float | None, *, is_kill: bool, is_terminal: bool) -> float | None:
    """Say for how long intents are enqueued; None: until somebody presses Ctrl-C."""
    if asked is None and (is_kill or not is_terminal):
        return DEFAULT_SECONDS
    return asked


def _perform(
    plan: Plan, data_dir: Path | None, teller: Teller, interruption: Interruption
) -> Audit | None:
    folder = (data_dir or default_data_dir()).expanduser().resolve()
    with (
        EmbeddedPostgres(folder, progress=teller.say) as database,
        own_database(database.url, folder) as (database_url, logs),
        (logs / "demo.log").open("w") as log,
    ):
        # What our own parts log would disturb the view.
        configure_logs("json", stream=log)
        applied = migrate(database_url)
        teller.write(f"migrated a fresh database: {len(applied)} steps")
        play = Play(plan, database_url, logs, teller, database.ensure_running)
        interruption.keep()
        return asyncio.run(play.perform(interruption))
