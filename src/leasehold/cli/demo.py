"""`leasehold demo`: the whole product at work, on a private database and a test gateway."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from leasehold.demo.run import Demo, DemoOptions, Interrupts
from leasehold.demo.view import View
from leasehold.embedded.server import EmbeddedPostgres, default_data_dir
from leasehold.observe.logs import configure_logs
from leasehold.store.database import database_at, server_at

if TYPE_CHECKING:
    from collections.abc import Generator

    from leasehold.demo.audit import Audit

DEFAULT_SECONDS = 20.0


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the private database.", show_default="your data folder"),
    ] = None,
    *,
    for_seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            min=1,
            max=86_400,
            metavar="SECONDS",
            help="Enqueue for this long, wait until every intent is finished, print a summary.",
            show_default=f"until Ctrl-C; {DEFAULT_SECONDS:g} with --kill or without a terminal",
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill a worker during its calls and show the recovery.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Number of workers.")] = 2,
    rate: Annotated[float, typer.Option(min=0.1, max=200, help="Sample intents per second.")] = 4.0,
    show_password: Annotated[
        bool,
        typer.Option("--show-password", help="Print the URL of the database with its password."),
    ] = False,
) -> None:
    """Run a demo on a private database: workers, an unreliable gateway and sample intents.

    Shows a live view until Ctrl-C. If stdin is not a terminal, it ends after 20 seconds; if stdout
    is not a terminal, it prints plain lines. The exit code is 0 only if no intent was lost, none
    had its effect twice, and the effects of each stream are in order.
    """
    interrupts = Interrupts()
    options = DemoOptions(
        seconds=run_seconds(for_seconds, is_kill=kill, is_terminal=sys.stdin.isatty()),
        is_kill=kill,
        workers=workers,
        rate_per_second=rate,
        shows_password=show_password,
    )
    is_live = sys.stdout.isatty() and not Console().is_dumb_terminal
    view = View(is_live=is_live, on_closed=interrupts.interrupt)
    try:
        result = _run(options, data_dir, view, interrupts)
    except KeyboardInterrupt:
        result = None
    if result is None:
        view.write("stopped")
    elif not result.is_clean:
        raise typer.Exit(code=1)


def run_seconds(option: float | None, *, is_kill: bool, is_terminal: bool) -> float | None:
    """Return how long to enqueue; None means until Ctrl-C."""
    if option is None and (is_kill or not is_terminal):
        return DEFAULT_SECONDS
    return option


def _run(
    options: DemoOptions, data_dir: Path | None, view: View, interrupts: Interrupts
) -> Audit | None:
    folder = (data_dir or default_data_dir()).expanduser().resolve()
    with (
        EmbeddedPostgres(folder, progress=view.report) as server,
        _demo_database(server.url, folder) as (database_url, logs),
        (logs / "demo.log").open("w") as log,
    ):
        # Logs of this process must not disturb the view.
        configure_logs("json", stream=log)
        steps = database_at(database_url).migrate()
        view.write(f"created the schema: {len(steps)} steps")
        demo = Demo(options, database_url, logs, view, server.ensure_running)
        interrupts.defer()
        return asyncio.run(demo.run(interrupts))


@contextmanager
def _demo_database(server_url: str, folder: Path) -> Generator[tuple[str, Path]]:
    """Create a database and a log folder, and yield both; remove those of earlier runs.

    Each run starts empty, because the gateway of an earlier run and its effects are gone.
    """
    with server_at(server_url).scratch_database("leasehold_demo_") as created:
        for old in created.dropped:
            shutil.rmtree(folder / old, ignore_errors=True)
        logs = folder / created.name
        logs.mkdir(mode=0o700)
        yield created.url, logs
