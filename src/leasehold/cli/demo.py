"""`leasehold demo`: the state machine at work on a private database, with its ledger to look at."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from leasehold.cli.demo_play import Played, play
from leasehold.config import Settings, read_settings
from leasehold.store.embedded import EmbeddedPostgres, find_binaries
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.store.answers import Attempt, IntentStatus

_WATCH_SECONDS = 2.0
_PIPE_WIDTH = 110  # where there is no window to fit into


def demo(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the private database lies.", show_default="your data folder"),
    ] = None,
    *,
    keep_running: Annotated[
        bool,
        typer.Option("--keep-running", help="Keep the database up, also without a terminal."),
    ] = False,
) -> None:
    """Push sample intents through a private database, and show the ledger that they leave."""
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    try:
        with EmbeddedPostgres(data_dir, progress=_say) as database:
            _show(console, database.url)
            if keep_running or sys.stdin.isatty():
                _keep_up(database)
            _say("\nStopping the database; with --keep-running it stays up")
    except KeyboardInterrupt:
        _say("stopped")


def _show(console: Console, database_url: str) -> None:
    applied = migrate(database_url)
    _say(f"migrated: {len(applied)} steps" if applied else "the schema is up to date")
    settings = read_settings(database_url=database_url, application_name="leasehold demo")
    played, attempts, statuses = asyncio.run(_play(settings))
    console.print()
    console.print(_ledger(played, attempts, statuses))
    console.print()
    console.print(_statuses(played, statuses))
    # Not through Rich, which would break a long line where no shell expects it.
    typer.echo(f"\nThe database: {database_url}")
    typer.echo(f"Look further: {shlex.join([_psql(), database_url])}")
    typer.echo("    TABLE leasehold.supervisor; TABLE leasehold.intent_status; \\df leasehold.*")


async def _play(
    settings: Settings,
) -> tuple[Played, Sequence[Attempt], Sequence[IntentStatus]]:
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        played = await play(store, _say)
        intent_ids = list(played.story_of)
        return played, await store.read_ledger(intent_ids), await store.read_status(intent_ids)


def _ledger(played: Played, attempts: Sequence[Attempt], statuses: Sequence[IntentStatus]) -> Table:
    targets = {status.intent_id: status.target for status in statuses}
    table = Table(title="The ledger: one row per try or intervention, never changed")
    for column in ("intent", "target", "attempt", "state", "reason", "holder", "when"):
        table.add_column(column, overflow="fold", no_wrap=column == "state")
    previous = None
    order = list(played.story_of)
    for attempt in sorted(attempts, key=lambda one: order.index(one.intent_id)):
        is_first = attempt.intent_id != previous
        previous = attempt.intent_id
        table.add_row(
            played.story_of[attempt.intent_id] if is_first else "",
            targets[attempt.intent_id] if is_first else "",
            str(attempt.attempt_no),
            attempt.state,
            attempt.reason or "",
            attempt.holder,
            f"{attempt.finished_at:%H:%M:%S}",
        )
    return table


def _statuses(played: Played, statuses: Sequence[IntentStatus]) -> Table:
    table = Table(title="The intents, as their users see them")
    for column in ("intent", "id", "status", "attempts", "reference"):
        table.add_column(column, overflow="fold")
    order = list(played.story_of)
    for status in sorted(statuses, key=lambda one: order.index(one.intent_id)):
        table.add_row(
            played.story_of[status.intent_id],
            str(status.intent_id),
            status.status,
            str(status.attempts),
            status.reference or "",
        )
    return table


def _psql() -> str:
    """Name a psql that surely exists: the one that came with the server."""
    own = find_binaries().bin_dir / "psql"
    return str(own) if own.exists() else "psql"


def _keep_up(database: EmbeddedPostgres) -> None:
    _say("\nPress Ctrl-C to stop")
    while True:
        time.sleep(_WATCH_SECONDS)
        database.ensure_running()


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
