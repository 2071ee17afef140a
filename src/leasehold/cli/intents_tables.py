"""Intents and their ledger as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.store.rows import Attempt, IntentStatus

_PIPE_WIDTH = 160  # where there is no window to fit into


def console() -> Console:
    """Give the output; wide enough for a pipe to be searched by line."""
    output = Console()
    if not output.is_terminal:
        output.width = _PIPE_WIDTH
    return output


def facts_table(status: IntentStatus) -> Table:
    """Show one intent, a fact a line; what does not apply is left out."""
    table = Table(show_header=False, title=f"Intent {status.intent_id}", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    facts = {
        "status": status.status,
        "reason": status.reason,
        "target": status.target,
        "contract": f"version {status.contract_version}",
        "idempotency key": status.idempotency_key,
        "stream": status.stream and f"{status.stream} ({status.stream_seq})",
        "priority": status.priority,
        "attempts": status.attempts,
        "claimed by": status.claimed_by,
        "reference": status.reference,
        "code": status.code,
        "detail": status.detail,
        "accepted": _moment(status.created_at),
        "due": _moment(status.due_at),
        "deadline": _moment(status.deadline_at),
        "finished": _moment(status.finished_at),
        "redrive of": status.redrive_of,
    }
    for name, value in facts.items():
        if value is not None and value != "":
            table.add_row(name, _plain(value))
    return table


def ledger_table(attempts: Sequence[Attempt]) -> Table:
    """Show the ledger of one intent."""
    table = Table(title="Its ledger", title_justify="left")
    for column in (
        "attempt",
        "state",
        "reason",
        "holder",
        "finished",
        "reference",
        "code",
        "detail",
    ):
        table.add_column(column, overflow="fold", no_wrap=column in {"attempt", "state"})
    for one in attempts:
        table.add_row(
            str(one.attempt_no),
            one.state,
            _plain(one.reason),
            _plain(one.holder),
            _moment(one.finished_at),
            _plain(one.reference),
            _plain(one.code),
            _plain(one.detail),
        )
    return table


def list_table(intents: Sequence[IntentStatus]) -> Table:
    """Show many intents, one a line."""
    table = Table()
    for column in ("intent", "target", "status", "attempts", "accepted", "due", "key"):
        table.add_column(column, overflow="fold", no_wrap=column in {"intent", "status"})
    for one in intents:
        table.add_row(
            str(one.intent_id),
            one.target,
            one.status,
            str(one.attempts),
            _moment(one.created_at),
            _moment(one.due_at),
            _plain(one.idempotency_key),
        )
    return table


def _moment(value: datetime | None) -> str:
    return f"{value.astimezone():%Y-%m-%d %H:%M:%S %z}" if value else ""


def _plain(value: object) -> Text:
    """Show what came from outside as it is, not as Rich's markup."""
    return Text("" if value is None else str(value))
