"""`leasehold sandbox`: a gateway to try things on, that misbehaves where asked to."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import Annotated

import typer

from leasehold.sandbox import Sandbox
from leasehold.sandbox.server import RECORD_ENTRIES_MAX


def sandbox(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free one.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help="Append the record to this file too, as JSON lines.", dir_okay=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed draws the same misfortunes.")
    ] = None,
    entries_max: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="When the record is full, it answers 507.")
    ] = RECORD_ENTRIES_MAX,
) -> None:
    """Run a gateway of each class, with a dial for trouble. The first line says where it is.

    POST /keyed, /fenced, /lookup, /blind; GET /lookup/KEY; PUT /dial; GET /record, /effects.
    """
    served = Sandbox(
        host=host, port=port, seed=seed, record_path=data, record_entries_max=entries_max
    )
    asyncio.run(_serve(served))


async def _serve(served: Sandbox) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with served:
        # A reader behind a pipe waits for this line.
        typer.echo(served.url)
        await stopped.wait()
