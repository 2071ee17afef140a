"""`leasehold intents`: list and show intents; cancel, resolve, retry and redrive them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from leasehold.cli.backend import Search, call_backend
from leasehold.cli.options import ApiUrl, DatabaseUrl, Operator, parse_time_or_age
from leasehold.cli.output import echo
from leasehold.cli.tables import console, intent_table, intents_table, ledger_table
from leasehold.domain.advice import INTENT_ADVICE
from leasehold.domain.intent import IntentId, Resolution, Status
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict, RetryNowVerdict
from leasehold.store.reader_rows import Listing

if TYPE_CHECKING:
    from leasehold.cli.backend import Backend
    from leasehold.store.reader_rows import IntentStatus

# How long `list` searches; someone is waiting at a terminal.
SEARCH_SECONDS = 10.0

app = typer.Typer(
    no_args_is_help=True, help="List and show intents; cancel, resolve or redrive them."
)

Id = Annotated[UUID, typer.Argument(help="Id of the intent.", show_default=False)]
Note = Annotated[str, typer.Option(help="Reason; it stays on the ledger.", show_default=False)]

_call = partial(call_backend, "leasehold intents")


@app.command()
def show(intent_id: Id, database_url: DatabaseUrl = None, api_url: ApiUrl = None) -> None:
    """Show the status of an intent, and its ledger."""
    status, attempts = _call(
        database_url, api_url, lambda backend: backend.read(IntentId(intent_id))
    )
    output = console()
    output.print(intent_table(status))
    output.print(ledger_table(attempts))


@app.command("list")
def list_(
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    status: Annotated[
        Status | None, typer.Option(help="Only with this status.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only for this target.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Only in this stream.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Accepted at or after this time; 15m, 2h, 1d count back from now.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Accepted before this time; 15m, 2h, 1d count back from now.", show_default=False
        ),
    ] = None,
    before: Annotated[
        UUID | None, typer.Option(help="Only intents older than this one.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of intents.")] = 50,
) -> None:
    """List intents, newest first. The last line says how to get the next page.

    No index leads from a status, target or stream to its intents. A search for rare ones stops
    after 10 seconds, and the last line says how to continue.
    """
    search = Search(
        status=status,
        target=target,
        stream=stream,
        since=parse_time_or_age("--since", since) if since is not None else None,
        until=parse_time_or_age("--until", until) if until is not None else None,
        before=IntentId(before) if before else None,
        limit=limit,
    )
    found = _call(database_url, api_url, lambda backend: _search(backend, search))
    if found.intents:
        console().print(intents_table(found.intents))
    if len(found.intents) == limit:
        echo(f"There may be more: add --before {found.intents[-1].intent_id}")
    elif found.searched_to is not None:
        count = "No intents" if not found.intents else f"Only {len(found.intents)}"
        echo(
            f"{count} found so far; older intents were not looked at: continue with "
            f"--before {found.searched_to}"
        )
    elif not found.intents:
        echo("No intents found.")


@app.command()
def cancel(
    intent_id: Id,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Cancel an intent for which no call was made."""
    verdict = _call(
        database_url, api_url, lambda backend: backend.cancel(IntentId(intent_id), note), operator
    )
    _report(intent_id, verdict, is_done=verdict is CancelVerdict.CANCELLED)


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
            help="dispatched: it had its effect. failed: it had none, do not try again. "
            "retry: it had none, try again.",
            show_default=False,
        ),
    ],
    note: Note,
    reference: Annotated[
        str | None, typer.Option(help="The gateway's reference for it.", show_default=False)
    ] = None,
    operator: Operator = None,
) -> None:
    """Record the outcome of an intent that is in doubt, held or waiting for confirmation."""
    verdict = _call(
        database_url,
        api_url,
        lambda backend: backend.resolve(IntentId(intent_id), resolution, note, reference=reference),
        operator,
    )
    _report(intent_id, verdict, is_done=verdict is ResolveVerdict.RESOLVED)


@app.command("retry-now")
def retry_now(
    intent_id: Id,
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Make an intent due now that waits for its next call. It spends no attempt."""
    verdict = _call(
        database_url,
        api_url,
        lambda backend: backend.retry_now(IntentId(intent_id), note),
        operator,
    )
    _report(intent_id, verdict, is_done=verdict is RetryNowVerdict.DUE_NOW)


@app.command()
def redrive(
    intent_ids: Annotated[
        list[UUID], typer.Argument(help="Ids of the intents.", show_default=False)
    ],
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    note: Note,
    operator: Operator = None,
) -> None:
    """Enqueue finished intents again: each becomes a new intent."""
    ids = [IntentId(one) for one in intent_ids]
    results = _call(database_url, api_url, lambda backend: backend.redrive(ids, note), operator)
    for one in results:
        new = f", as {one.new_intent_id}" if one.new_intent_id else ""
        is_done = one.verdict is RedriveVerdict.REDRIVEN
        echo(f"{one.intent_id}: {_explain(one.verdict, is_done=is_done)}{new}")
    if any(one.verdict is not RedriveVerdict.REDRIVEN for one in results):
        raise typer.Exit(code=1)


async def _search(backend: Backend, search: Search) -> Listing:
    """Search until the page is full, every intent was looked at, or the time is up.

    Each call looks at a bounded number of intents.
    """
    ends_at = time.monotonic() + SEARCH_SECONDS
    before, limit = search["before"], search["limit"]
    found: list[IntentStatus] = []
    while True:
        page: Search = {**search, "before": before, "limit": limit - len(found)}
        listing = await backend.search(page)
        found += listing.intents
        before = listing.searched_to
        if len(found) == limit or before is None or time.monotonic() >= ends_at:
            return Listing(found, before)


def _report(intent_id: UUID, verdict: str, *, is_done: bool) -> None:
    echo(f"{intent_id}: {_explain(verdict, is_done=is_done)}", err=not is_done)
    if not is_done:
        raise typer.Exit(code=1)


def _explain(verdict: str, *, is_done: bool) -> str:
    return verdict if is_done else f"{verdict}: {INTENT_ADVICE[verdict]}"
