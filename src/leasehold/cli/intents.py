"""`leasehold intents`: look at intents, and intervene in an operator's name."""

from __future__ import annotations

import asyncio
import getpass
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from leasehold.cli.intents_tables import console, facts_table, ledger_table, list_table
from leasehold.cli.migrate import DatabaseUrl  # noqa: TC001 (Typer reads the annotation)
from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState, IntentId, Status
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from leasehold.store.answers import Attempt, IntentStatus, Listing, Redriven

app = typer.Typer(no_args_is_help=True, help="Look at intents, and intervene.")

Id = Annotated[UUID, typer.Argument(help="The intent's id.", show_default=False)]
Note = Annotated[
    str, typer.Option(help="Why; it stands on the ledger for ever.", show_default=False)
]
Operator = Annotated[str | None, typer.Option(help="In whose name.", show_default="your user name")]


class Resolution(StrEnum):
    """What an operator may say of a doubt."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    RETRY = "retry"


_STATES = {
    Resolution.DISPATCHED: AttemptState.DISPATCHED,
    Resolution.FAILED: AttemptState.FAILED,
    Resolution.RETRY: AttemptState.RETRYABLE,
}
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
def show(intent_id: Id, database_url: DatabaseUrl = None) -> None:
    """Show where an intent stands, and its ledger."""
    status, attempts = asyncio.run(_read(database_url, IntentId(intent_id)))
    output = console()
    output.print(facts_table(status))
    output.print(ledger_table(attempts))


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    *,
    status: Annotated[Status | None, typer.Option(help="Only these.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only of this one.", show_default=False)
    ] = None,
    before: Annotated[
        UUID | None, typer.Option(help="Only older ones than this intent.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
) -> None:
    """List intents, newest first. The last line says how to go on."""
    older_than = IntentId(before) if before else None
    found = asyncio.run(_list(database_url, status, target, older_than, limit))
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
    intent_id: Id, database_url: DatabaseUrl = None, *, note: Note, operator: Operator = None
) -> None:
    """Cancel an intent that no call was made for."""
    verdict = asyncio.run(_cancel(database_url, IntentId(intent_id), _name(operator), note))
    _tell(intent_id, verdict, is_done=verdict is CancelVerdict.CANCELLED)


@app.command()
def resolve(
    intent_id: Id,
    database_url: DatabaseUrl = None,
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
    verdict = asyncio.run(
        _resolve(
            database_url,
            IntentId(intent_id),
            _STATES[resolution],
            _name(operator),
            note,
            reference,
        )
    )
    _tell(intent_id, verdict, is_done=verdict is ResolveVerdict.RESOLVED)


@app.command()
def redrive(
    intent_ids: Annotated[list[UUID], typer.Argument(help="The ids.", show_default=False)],
    database_url: DatabaseUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Try finished intents anew: each becomes a new intent."""
    ids = [IntentId(one) for one in intent_ids]
    answers = asyncio.run(_redrive(database_url, ids, _name(operator), note))
    for one in answers:
        new = f", as {one.new_intent_id}" if one.new_intent_id else ""
        is_done = one.verdict is RedriveVerdict.REDRIVEN
        typer.echo(f"{one.intent_id}: {_told(one.verdict, is_done=is_done)}{new}")
    if any(one.verdict is not RedriveVerdict.REDRIVEN for one in answers):
        raise typer.Exit(code=1)


async def _read(
    database_url: str | None, intent_id: IntentId
) -> tuple[IntentStatus, list[Attempt]]:
    async with _store(database_url) as store:
        statuses = await store.read_status([intent_id])
        if not statuses:
            raise InvalidArgument(f"no intent {intent_id} is known")
        return statuses[0], await store.read_ledger([intent_id])


async def _list(
    database_url: str | None,
    status: Status | None,
    target: str | None,
    before: IntentId | None,
    limit: int,
) -> Listing:
    async with _store(database_url) as store:
        return await store.list_intents(status=status, target=target, before=before, limit=limit)


async def _cancel(
    database_url: str | None, intent_id: IntentId, operator: str, note: str
) -> CancelVerdict:
    async with _store(database_url) as store:
        return await store.cancel_intent(intent_id, operator, note)


async def _resolve(
    database_url: str | None,
    intent_id: IntentId,
    state: AttemptState,
    operator: str,
    note: str,
    reference: str | None,
) -> ResolveVerdict:
    async with _store(database_url) as store:
        return await store.resolve_intent(intent_id, state, operator, note, reference)


async def _redrive(
    database_url: str | None, intent_ids: Sequence[IntentId], operator: str, note: str
) -> list[Redriven]:
    async with _store(database_url) as store:
        return await store.redrive_intents(intent_ids, operator, note)


@asynccontextmanager
async def _store(database_url: str | None) -> AsyncGenerator[PostgresStore]:
    settings = read_settings(
        database_url=database_url, application_name="leasehold intents", pool_size_max=1
    )
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        yield store


def _tell(intent_id: UUID, verdict: str, *, is_done: bool) -> None:
    typer.echo(f"{intent_id}: {_told(verdict, is_done=is_done)}", err=not is_done)
    if not is_done:
        raise typer.Exit(code=1)


def _told(verdict: str, *, is_done: bool) -> str:
    return verdict if is_done else f"{verdict}: {_ADVICE[verdict]}"


def _name(operator: str | None) -> str:
    if operator is not None:
        return operator
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise InvalidArgument("this user has no name: give --operator") from None
