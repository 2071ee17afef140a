"""Tables of intents, ledgers, streams, targets and tokens on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.domain.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.store.reader_rows import Attempt, IntentStatus, StreamPause, StreamSeen

_PIPE_WIDTH = 200  # wide enough for `grep` to find whole rows


def console() -> Console:
    """Return the standard output: as wide as the terminal, or a fixed width for a pipe."""
    output = Console()
    if not output.is_terminal:
        output.width = _PIPE_WIDTH
    return output


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table without borders."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    console().print(table)


def intent_table(status: IntentStatus) -> Table:
    """Show one intent, a field per line; empty fields are left out."""
    fields = {
        "status": status.status,
        "reason": status.reason,
        "target": status.target,
        "contract": f"version {status.contract_version}",
        "idempotency key": status.idempotency_key,
        "stream": status.stream and f"{status.stream} ({status.stream_seq})",
        "priority": status.priority,
        "attempts": status.attempts,
        "deferred since": _time(status.deferred_since),
        "claimed by": status.claimed_by,
        "reference": status.reference,
        "code": status.code,
        "detail": status.detail,
        "accepted": _time(status.created_at),
        "due": _time(status.due_at),
        "deadline": _time(status.deadline_at),
        "finished": _time(status.finished_at),
        "redrive of": status.redrive_of,
    }
    return _fields_table(f"Intent {status.intent_id}", fields)


def stream_table(seen: StreamSeen) -> Table:
    """Show one stream, a field per line; empty fields are left out."""
    fields = {
        "state": seen.state,
        "reason": seen.reason,
        "blocked since": _time(seen.blocked_since),
        "paused by": seen.paused_by,
        "paused for": seen.paused_for,
        "paused until": _time(seen.pauses[0].paused_until) if seen.pauses else None,
        "also paused": "\n".join(map(_pause, seen.pauses[1:])),
        "next (head)": seen.head,
        "attempts": seen.attempts,
        "due": _time(seen.due_at),
        "waiting": seen.waiting,
        "submitted": seen.submitted or None,
        "in flight since": _time(seen.in_flight_since),
        "holder": seen.holder_id,
        "epoch": seen.lease_epoch,
        "first expiry": _time(seen.lease_expires_at),
        "second expiry": _time(seen.grace_expires_at),
    }
    return _fields_table(f"Stream {seen.target}/{seen.stream}", fields)


def _pause(pause: StreamPause) -> str:
    who = pause.paused_by if pause.paused_for is None else f"{pause.paused_by}: {pause.paused_for}"
    until = "" if pause.paused_until is None else f" until {_time(pause.paused_until)}"
    return f"by {who} since {_time(pause.paused_since)}{until}: {pause.note or ''}"


def _fields_table(title: str, fields: Mapping[str, object]) -> Table:
    table = Table(show_header=False, title=_plain(title), title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None and value != "":
            table.add_row(name, _plain(value))
    return table


def ledger_table(attempts: Sequence[Attempt]) -> Table:
    """Show the ledger of one intent."""
    table = Table(title="Ledger", title_justify="left")
    columns = ("attempt", "state", "reason", "holder", "finished", "reference", "code", "detail")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in {"attempt", "state"})
    for one in attempts:
        table.add_row(
            str(one.attempt_no),
            one.state,
            _plain(one.reason),
            _plain(one.holder),
            _time(one.finished_at),
            _plain(one.reference),
            _plain(one.code),
            _plain(one.detail),
        )
    return table


def intents_table(intents: Sequence[IntentStatus]) -> Table:
    """Show many intents, one per line."""
    table = Table()
    for column in ("intent", "target", "status", "attempts", "accepted", "due", "key"):
        table.add_column(column, overflow="fold", no_wrap=column in {"intent", "status"})
    for one in intents:
        table.add_row(
            str(one.intent_id),
            _plain(one.target),
            one.status,
            str(one.attempts),
            _time(one.created_at),
            _time(one.due_at),
            _plain(one.idempotency_key),
        )
    return table


def _time(value: datetime | None) -> str:
    return f"{value.astimezone():%Y-%m-%d %H:%M:%S %z}" if value else ""


def _plain(value: object) -> Text:
    """Show external text literally: not as Rich markup, nor as control characters."""
    return Text("" if value is None else printable(str(value), keep="\n"))
