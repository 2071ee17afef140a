"""`leasehold sandbox`: a test gateway that misbehaves on demand."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import Annotated

import typer

from leasehold.cli.output import echo
from leasehold.sandbox import Sandbox
from leasehold.sandbox.server import REQUESTS_MAX


def sandbox(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help="Also append every request to this file, as JSON lines.", dir_okay=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random faults, to repeat a run.")
    ] = None,
    requests_max: Annotated[
        int,
        typer.Option(
            min=1, max=100_000_000, help="Requests to log; further ones are answered with 507."
        ),
    ] = REQUESTS_MAX,
) -> None:
    """Run a test gateway for each guarantee class, with adjustable faults. Prints its URL.

    POST /keyed, /fenced, /lookup, /blind; GET /lookup/KEY. A distributed ledger: POST
    /ledger/batches, GET /ledger/batch_statuses?id=A,B. PUT /faults sets the faults; GET /requests
    and /effects show what arrived and what had an effect.
    """
    server = Sandbox(host=host, port=port, seed=seed, log_path=data, requests_max=requests_max)
    asyncio.run(_serve(server))


async def _serve(server: Sandbox) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with server:
        # Scripts wait for this line: it means that the server accepts requests.
        echo(server.url)
        await stopped.wait()
