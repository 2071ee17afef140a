"""`leasehold streams`: list blocked streams, show one; pause, resume and skip."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast
from uuid import UUID

import typer

from leasehold.cli.backend import call_backend
from leasehold.cli.options import ApiUrl, DatabaseUrl, Operator  # noqa: TC001 (Typer reads them)
from leasehold.cli.output import echo
from leasehold.cli.tables import console, print_table, stream_table
from leasehold.domain.advice import STREAM_ADVICE
from leasehold.domain.intent import IntentId
from leasehold.domain.verdict import PauseVerdict, ResumeVerdict, SkipVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.store.reader_rows import BlockedStream, StreamSeen

app = typer.Typer(
    no_args_is_help=True,
    help="List streams that are blocked; show, pause or resume a stream, or skip its head.",
)

Target = Annotated[str, typer.Argument(help="Target of the stream.", show_default=False)]
Stream = Annotated[str, typer.Argument(help="Name of the stream.", show_default=False)]
Head = Annotated[
    UUID, typer.Argument(help="The intent that you saw at the head.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with the names of the API.")]
Note = Annotated[str, typer.Option(help="Reason; it stays on record.", show_default=False)]

_call = partial(call_backend, "leasehold streams")


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", help="Only of this target; repeat for more.", show_default="all"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most streams to list.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List streams that are paused, or whose head was tried and has not ended.

    `paused for` is the failed intent that paused the stream. It is finished; `next` is the head.
    A stream may be paused for more reasons than the one that is listed: `show` shows all of them.
    """
    blocked = _call(database_url, api_url, lambda backend: backend.blocked(targets or None, limit))
    if as_json:
        echo(json.dumps([_members(one) for one in blocked], indent=2))
    elif blocked:
        _print_blocked(blocked)
    else:
        echo("No stream is blocked.")
    if len(blocked) == limit:
        echo(f"There may be more than {limit}: use --target or a higher --limit.", err=True)


@app.command()
def show(
    target: Target,
    stream: Stream,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a stream, blocked or not: its head, its state and its holder."""
    seen = _call(database_url, api_url, lambda backend: backend.stream(target, stream))
    if seen is None:
        echo(f"{target}/{stream}: no such stream", err=True)
        raise typer.Exit(1)
    if as_json:
        echo(json.dumps(_members(seen), indent=2))
    else:
        console().print(stream_table(seen))


@app.command()
def pause(
    target: Target,
    stream: Stream,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    seconds: Annotated[
        float | None,
        typer.Option(help="For how long.", show_default="until it is resumed", min=0.001),
    ] = None,
    operator: Operator = None,
) -> None:
    """Begin nothing more of a stream. A call in flight goes on."""
    verdict = _call(
        database_url,
        api_url,
        lambda backend: backend.pause_stream(target, stream, note, seconds=seconds),
        operator,
    )
    _report(target, stream, verdict, is_done=verdict is PauseVerdict.PAUSED)


@app.command()
def resume(
    target: Target,
    stream: Stream,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    paused_for: Annotated[
        UUID | None,
        typer.Option(
            help="End the pause for this failed intent, and for those that failed before it.",
            show_default=False,
        ),
    ] = None,
    paused_by: Annotated[
        str | None, typer.Option(help="End the pause of this person.", show_default="your own")
    ] = None,
    operator: Operator = None,
) -> None:
    """End a pause of a stream. The stream goes on when it is not paused for another reason."""
    failed = None if paused_for is None else IntentId(paused_for)
    verdict = _call(
        database_url,
        api_url,
        lambda backend: backend.resume_stream(
            target, stream, note, paused_by=paused_by, paused_for=failed
        ),
        operator,
    )
    _report(target, stream, verdict, is_done=verdict.is_done)
    if verdict is ResumeVerdict.STILL_PAUSED:
        echo("It is paused for another reason too; see `leasehold streams show`.", err=True)


@app.command()
def skip(
    target: Target,
    stream: Stream,
    intent_id: Head,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Cancel the head of a stream, so that the next intent can go. A pause stays."""
    verdict = _call(
        database_url,
        api_url,
        lambda backend: backend.skip_stream_head(target, stream, IntentId(intent_id), note),
        operator,
    )
    _report(target, stream, verdict, is_done=verdict.is_done)
    if verdict is SkipVerdict.SKIPPED_PAUSED:
        echo("The stream is still paused; see `leasehold streams show`.", err=True)


def _print_blocked(blocked: Sequence[BlockedStream]) -> None:
    print_table(
        (
            "target",
            "stream",
            "state",
            "paused for",
            "reason",
            "since",
            "next",
            "attempts",
            "waiting",
            "submitted",
        ),
        [
            (
                one.target,
                one.stream,
                one.state,
                one.paused_for,
                one.reason if len(one.pauses) < 2 else f"{one.reason} (1 of {len(one.pauses)})",
                f"{one.blocked_since:%Y-%m-%d %H:%M:%S}",
                one.head,
                one.attempts,
                one.waiting,
                one.submitted,
            )
            for one in blocked
        ],
    )


def _members(seen: BlockedStream | StreamSeen) -> dict[str, object]:
    """Return the members that the API answers with; times are UTC."""
    return {name: _json_value(value) for name, value in asdict(seen).items()}


def _json_value(value: object) -> object:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case UUID():
            return str(value)
        case list():
            return [_json_value(one) for one in cast("list[object]", value)]
        case dict():
            members = cast("dict[str, object]", value)
            return {name: _json_value(one) for name, one in members.items()}
        case _:
            return value


def _report(target: str, stream: str, verdict: str, *, is_done: bool) -> None:
    if is_done:
        echo(f"{target}/{stream}: {verdict}")
        return
    echo(f"{target}/{stream}: {verdict}: {STREAM_ADVICE[str(verdict)]}", err=True)
    raise typer.Exit(1)
