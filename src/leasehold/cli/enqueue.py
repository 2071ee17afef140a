"""`leasehold enqueue`: enqueue one intent, or a file of intents."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import Annotated

import typer

from leasehold.cli.backend import Endpoint
from leasehold.cli.enqueue_file import enqueue_file, parse_json, warn_of_idle_targets
from leasehold.cli.options import ApiUrl, DatabaseUrl, parse_duration_or_time
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import KeyScope, NewIntent


def enqueue(
    target: Annotated[
        str, typer.Argument(help="Target of the intent; a line of a file can name another.")
    ],
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    payload: Annotated[
        str | None, typer.Option(help="JSON payload of one intent; - reads it from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help='File of JSON lines such as {"payload": {}, "idempotency_key": "k"}; - or no '
            "option reads stdin."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key; only with --payload.")] = None,
    key_scope: Annotated[
        KeyScope | None,
        typer.Option(help="Intents that share a key; default: those of its target."),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Stream; its intents are submitted in order.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="Earliest submission: 90, 15m, 2h, 1d, or a time.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Latest submission: 90, 15m, 2h, 1d, or a time.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="From 0 (first) to 3 (last); default 1.")
    ] = None,
) -> None:
    """Enqueue one intent and print its id, or enqueue a file of intents and print a summary.

    Exit code 1 if any intent was refused. Accepted intents stay accepted. If every line has an
    idempotency key, it is safe to run the same file again.
    """
    if payload is not None and file is not None:
        raise InvalidArgument("--payload and --file cannot be used together")
    delay_seconds, due_at = parse_duration_or_time("--delay", delay) if delay else (None, None)
    deadline_seconds, deadline_at = (
        parse_duration_or_time("--deadline", deadline) if deadline else (None, None)
    )
    intent = NewIntent(
        target=target,
        payload=None if payload is None else _read_payload(payload),
        idempotency_key=key,
        key_scope=key_scope,
        stream=stream,
        priority=priority,
        due_at=due_at,
        delay_seconds=delay_seconds,
        deadline_at=deadline_at,
        deadline_seconds=deadline_seconds,
    )
    endpoint = Endpoint.choose(database_url, api_url, "leasehold enqueue")
    if payload is not None:
        asyncio.run(_enqueue_one(endpoint, intent))
    elif key is not None:
        raise InvalidArgument(
            '--key needs --payload; in a file, each line has its own "idempotency_key"'
        )
    elif not enqueue_file(endpoint, file, intent):
        raise typer.Exit(code=1)


def _read_payload(text: str) -> object:
    value = parse_json(sys.stdin.read() if text == "-" else text)
    if value is None:
        raise InvalidArgument("the payload is null: give any other JSON value")
    return value


async def _enqueue_one(endpoint: Endpoint, intent: NewIntent) -> None:
    async with endpoint.connect() as backend:
        receipt = await backend.enqueue(intent)
        typer.echo(receipt.intent_id)
        await warn_of_idle_targets(backend, {intent.target})
    if not receipt.is_new:
        typer.echo("Already enqueued before, with the same key and payload.", err=True)
