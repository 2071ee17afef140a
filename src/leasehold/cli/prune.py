"""`leasehold prune`: delete old, finished intents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from leasehold.cli.options import DatabaseUrl, read_command_settings
from leasehold.cli.output import echo
from leasehold.domain.errors import InvalidArgument


def prune(
    database_url: DatabaseUrl = None,
    *,
    before: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"],
            help="Delete intents accepted before this day or time (UTC).",
            show_default=False,
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(
            min=1, max=36500, help="Delete intents older than this many days.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=100000, help="Intents per transaction.")
    ] = 10000,
) -> None:
    """Delete whole months of finished intents with their ledger. Needs role leasehold_owner.

    An idempotency key can be used again once its intent is deleted, so keep at least as many days
    as a client may repeat a request.
    """
    if (before is None) == (keep_days is None):
        raise InvalidArgument("give either --before or --keep-days")
    database = read_command_settings(database_url=database_url).database()
    moment = before.replace(tzinfo=UTC) if before else None
    intents, months = 0, 0
    kept: list[str] = []
    for step in database.prune(before=moment, keep_days=keep_days or 0, batch_size=batch_size):
        intents += step.intents_deleted
        kept = step.partitions_kept
        if step.partition_dropped:
            months += 1
            echo(f"Dropped {step.partition_dropped} ({intents} intents so far)")
    echo(f"Deleted {intents} intents in {months} month{'s' * (months != 1)}.")
    if kept:
        echo(f"Kept because of unfinished intents: {', '.join(kept)}")
