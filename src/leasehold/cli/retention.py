"""`leasehold prune`: forget what is finished and old."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from leasehold.cli.migrate import DatabaseUrl  # noqa: TC001 (Typer reads the annotation)
from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres import retention


def prune(
    database_url: DatabaseUrl = None,
    *,
    before: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"],
            help="Forget what was accepted before this day (UTC).",
            show_default=False,
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(min=1, max=36500, help="Keep this many days.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=100000, help="Intents per transaction.")
    ] = 10000,
) -> None:
    """Forget whole months of finished intents, with their ledger. Needs the role leasehold_owner.

    A pruned idempotency key may be used again: what is kept is the window of idempotency.
    """
    if (before is None) == (keep_days is None):
        raise InvalidArgument("say how much to keep: either --before or --keep-days")
    address = read_settings(database_url=database_url).required_database_url()
    intents, months = 0, 0
    kept: list[str] = []
    for step in retention.prune(
        address,
        before=before.replace(tzinfo=UTC) if before else None,
        keep_days=keep_days or 0,
        batch_size=batch_size,
    ):
        intents += step.intents_deleted
        kept = step.partitions_kept
        if step.partition_dropped:
            months += 1
            typer.echo(f"dropped {step.partition_dropped} ({intents} intents so far)")
    typer.echo(f"Forgot {intents} intents in {months} months.")
    if kept:
        typer.echo(f"Left because of unfinished intents: {', '.join(kept)}")
