"""`leasehold intents`: look at intents, and intervene in an operator's name."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

from leasehold.cli.intents_source import Search, opened_source
from leasehold.cli.intents_tables import console, facts_table, ledger_table, list_table
from leasehold.cli.moments import moment_or_ago
from leasehold.cli.place import ApiUrl, DatabaseUrl, Place
from leasehold.domain.intent import IntentId, Status
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.cli.intents_source import IntentsSource

Answer = TypeVar("Answer")

app = typer.Typer(no_args_is_help=True, help="Look at intents, and intervene.")

Id = Annotated[UUID, typer.Argument(help="The intent's id.", show_default=False)]
Note = Annotated[
    str, typer.Option(help="Why; it stands on the ledger for ever.", show_default=False)
]
Operator = Annotated[
    str | None,
    typer.Option(
        help="In whose name; over the API it is the token's.", show_default="your user name"
    ),
]


class Resolution(StrEnum):
    """What an operator may say of a doubt."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    RETRY = "retry"


# What a person does next.
_ADVICE = {
    "in_flight": "somebody is at it right now; try again when its claim has ended",
    "in_doubt": "a call may have had its effect; use `leasehold intents resolve` instead",
    "confirming": "the gateway has it already; use `leasehold intents resolve` instead",
    "not_in_doubt": "there is no doubt about it; see `leasehold intents show`",
    "already_terminal": "it is finished; see `leasehold intents show`",
    "not_found": "no such intent is known",
    "already_accepted": "the gateway accepted it; there is nothing to try anew",
    "already_redriven": "that was done before",
    "not_terminal": "it is not finished yet",
    "unknown_target": "no contract is published for its target any more",
}


@app.command()
def show(intent_id: Id, database_url: DatabaseUrl = None, api_url: ApiUrl = None) -> None:
    """Show where an intent stands, and its ledger."""
    status, attempts = _asked(
        database_url, api_url, lambda source: source.read(IntentId(intent_id))
    )
    output = console()
    output.print(facts_table(status))
    output.print(ledger_table(attempts))


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    status: Annotated[Status | None, typer.Option(help="Only these.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only of this one.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Only of this stream.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Accepted then or later: a moment, or 15m, 2h, 1d ago.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Accepted before then: a moment, or so long ago.", show_default=False),
    ] = None,
    before: Annotated[
        UUID | None, typer.Option(help="Only older ones than this intent.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
) -> None:
    """List intents, newest first. The last line says how to go on."""
    search = Search(
        status=status,
        target=target,
        stream=stream,
        since=moment_or_ago("--since", since) if since is not None else None,
        until=moment_or_ago("--until", until) if until is not None else None,
        before=IntentId(before) if before else None,
        limit=limit,
    )
    found = _asked(database_url, api_url, lambda source: source.list(search))
    if found.intents:
        console().print(list_table(found.intents))
    else:
        typer.echo("none found")
    if len(found.intents) == limit:
        typer.echo(f"There may be more: --before {found.intents[-1].intent_id}")
    elif found.searched_to is not None:
        typer.echo(f"Looked only so far; go on with --before {found.searched_to}")


@app.command()
def cancel(
    intent_id: Id,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Cancel an intent that no call was made for."""
    verdict = _asked(
        database_url, api_url, lambda source: source.cancel(IntentId(intent_id), note), operator
    )
    _tell(intent_id, verdict, is_done=verdict is CancelVerdict.CANCELLED)


@app.command()
def resolve(
    intent_id: Id,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    resolution: Annotated[
        Resolution,
        typer.Option(
            "--as",
            help="dispatched: it had its effect. failed: it had none and shall have none. "
            "retry: it had none and is to be tried again.",
            show_default=False,
        ),
    ],
    note: Note,
    reference: Annotated[
        str | None, typer.Option(help="What the gateway calls it.", show_default=False)
    ] = None,
    operator: Operator = None,
) -> None:
    """Say what became of an intent that is in doubt, held or awaiting confirmation."""
    verdict = _asked(
        database_url,
        api_url,
        lambda source: source.resolve(IntentId(intent_id), resolution.value, note, reference),
        operator,
    )
    _tell(intent_id, verdict, is_done=verdict is ResolveVerdict.RESOLVED)


@app.command()
def redrive(
    intent_ids: Annotated[list[UUID], typer.Argument(help="The ids.", show_default=False)],
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Try finished intents anew: each becomes a new intent."""
    ids = [IntentId(one) for one in intent_ids]
    answers = _asked(database_url, api_url, lambda source: source.redrive(ids, note), operator)
    for one in answers:
        new = f", as {one.new_intent_id}" if one.new_intent_id else ""
        is_done = one.verdict is RedriveVerdict.REDRIVEN
        typer.echo(f"{one.intent_id}: {_told(one.verdict, is_done=is_done)}{new}")
    if any(one.verdict is not RedriveVerdict.REDRIVEN for one in answers):
        raise typer.Exit(code=1)


def _asked(
    database_url: str | None,
    api_url: str | None,
    ask: Callable[[IntentsSource], Awaitable[Answer]],
    operator: str | None = None,
) -> Answer:
    """Ask the database, or the API, whichever was named."""
    place = Place.read(database_url, api_url, "leasehold intents", pool_size_max=1)

    async def asked() -> Answer:
        async with opened_source(place, operator) as source:
            return await ask(source)

    return asyncio.run(asked())


def _tell(intent_id: UUID, verdict: str, *, is_done: bool) -> None:
    typer.echo(f"{intent_id}: {_told(verdict, is_done=is_done)}", err=not is_done)
    if not is_done:
        raise typer.Exit(code=1)


def _told(verdict: str, *, is_done: bool) -> str:
    return verdict if is_done else f"{verdict}: {_ADVICE[verdict]}"
