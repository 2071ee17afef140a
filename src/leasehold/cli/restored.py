"""`leasehold restored`: say that an older state of the database was restored."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.options import DatabaseUrl, Operator, operator_name, read_command_settings
from leasehold.cli.output import echo
from leasehold.domain.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from leasehold.store.generation_rows import RestoreStep
    from leasehold.store.protocol import OperatorStore

_PROGRESS_SECONDS = 1.0


def restored(
    database_url: DatabaseUrl = None,
    *,
    note: Annotated[
        str,
        typer.Option(
            help="What was restored and why; it stays on the ledgers.", show_default=False
        ),
    ],
    operator: Operator = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=10000, help="Intents per transaction.")
    ] = 1000,
) -> None:
    """Say that an older state of the database was restored. Run it before any worker starts.

    It raises all fencing tokens, and puts every unfinished intent in doubt that may have been sent
    meanwhile and must not be sent twice: of lookup, of blind, and of keyed with a key window. While
    it runs, no lease is granted. If it is interrupted, run it again: it goes on where it stopped.
    Needs role leasehold_operator.
    """
    settings = read_command_settings(
        database_url=database_url, application_name="leasehold restored", pool_size_max=1
    )

    async def connect_and_run() -> None:
        async with settings.database() as database:
            await database.check_schema(role="leasehold_operator")
            await _run(database.store, operator_name(operator), note, batch_size)

    try:
        asyncio.run(connect_and_run())
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(
            f"{error}. It is not done: run `leasehold restored` again, and it goes on where it "
            "stopped",
            reason=error.reason,
        ) from error


async def _run(store: OperatorStore, operator: str, note: str, batch_size: int) -> None:
    begun = await store.begin_restored_generation(operator, note)
    what = "Began" if begun.is_new else "Went on with"
    echo(
        f"{what} generation {begun.generation_no}: fencing tokens start above {begun.token_floor}, "
        "and no lease is granted until this is done."
    )
    looked_at, told_at = 0, time.monotonic()
    while True:
        step = await store.repair_restored_intents(batch_size)
        looked_at += step.looked_at
        if step.is_done:
            break
        if time.monotonic() >= told_at + _PROGRESS_SECONDS:
            told_at = time.monotonic()
            echo(_progress(looked_at, step))
    echo(f"Done. {_progress(looked_at, step)}")
    echo("Leases are granted again: start the workers.")
    if step.in_doubt_so_far:
        echo("See what waits for a person with: leasehold intents list --status held")


def _progress(looked_at: int, step: RestoreStep) -> str:
    return (
        f"Looked at {looked_at} unfinished intents; the restore has put {step.in_doubt_so_far} in "
        "doubt."
    )
