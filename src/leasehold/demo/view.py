"""What `leasehold demo` shows: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from leasehold.demo.trickle import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from rich.console import RenderableType

    from leasehold.demo.read import LedgerRow, SeenInstance, SeenLease, Snapshot

STATUS_SECONDS = 2.0
_EVENTS_KEPT = 40
_EVENTS_SHOWN = 3
_PEOPLE_SHOWN = 3
_STATE_STYLES = {
    "DISPATCHED": "green",
    "FAILED": "red",
    "RETRYABLE": "yellow",
    "ZOMBIE_REQUEUE": "magenta",
    "IN_DOUBT": "bold yellow",
}


class Teller:
    """Says what happens, a line at a time; in a terminal, below a live view."""

    def __init__(self, *, is_live: bool, on_closed: Callable[[], None]) -> None:
        self.began_at = time.monotonic()
        self._is_live = is_live
        self._on_closed = on_closed
        self._places: dict[str, str] = {}
        self._events: deque[str] = deque(maxlen=_EVENTS_KEPT)
        self._live: Live | None = None
        self._status_due_at = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Since the play began."""
        return time.monotonic() - self.began_at

    @property
    def is_due(self) -> bool:
        """Whether it is time to show something again; a line takes its place for good."""
        return self._live is not None or self.elapsed_seconds >= self._status_due_at

    def say(self, line: str) -> None:
        """Tell an event."""
        if self._live is None:
            self.write(f"{self.elapsed_seconds:6.1f} s  {line}" if self._places else line)
        else:
            self._events.append(f"{self.elapsed_seconds:6.1f} s  {line}")

    def write(self, line: str) -> None:
        """Print a line; nobody may be there any more to read it, and then we end, in order."""
        try:
            typer.echo(line)
        except OSError:
            # What is still buffered would fail again at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._on_closed()

    @contextmanager
    def playing(self, places: dict[str, str]) -> Generator[None]:
        """Show the play from here on; afterwards what happened stands above the summary."""
        self.began_at = time.monotonic()
        self._places = places
        for name, place in places.items():
            self.write(f"{name:8s} {place}")
        if not self._is_live:
            yield
            return
        console = Console()
        try:
            with Live(console=console, screen=True, auto_refresh=False) as self._live:
                yield
        finally:
            self._live = None
            for event in self._events:
                self.write(event)

    def show(self, snapshot: Snapshot) -> None:
        """Show how things are; as a plain line, only every two seconds."""
        if self._live is not None:
            width, height = self._live.console.size
            self._live.update(self._screen(snapshot, width, height), refresh=True)
        else:
            self._status_due_at = snapshot.elapsed_seconds + STATUS_SECONDS
            self.write(status_line(snapshot))

    def _screen(self, snapshot: Snapshot, width: int, height: int) -> RenderableType:
        """Fill the window; what is left of its height is the ledger's."""
        urls = [place for place in self._places.values() if "://" in place]
        head = 1 + sum(math.ceil(len(url) / width) for url in urls)
        layout = Layout()
        layout.split_column(
            Layout(_head(snapshot, urls), size=head),
            Layout(name="people", size=2 + _PEOPLE_SHOWN),
            Layout(_section("Targets", _targets(snapshot)), size=2 + len(TARGETS)),
            Layout(_section("Latest ledger rows", _ledger(snapshot.ledger[:height]))),
            Layout(_section("Events", self._event_lines()), size=1 + _EVENTS_SHOWN),
        )
        layout["people"].split_row(
            Layout(_section("Instances", _instances(snapshot.instances)), size=width * 35 // 80),
            Layout(_section("Leases", _leases(snapshot.leases))),
        )
        return layout

    def _event_lines(self) -> RenderableType:
        shown = list(self._events)[-_EVENTS_SHOWN:]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in shown))


def status_line(snapshot: Snapshot) -> str:
    """Tell the numbers in one line."""
    work = snapshot.work.values()
    accepted = sum(snapshot.accepted.values())
    unfinished = sum(one.unfinished for one in work)
    return (
        f"{snapshot.elapsed_seconds:6.1f} s  accepted {accepted}"
        f"  finished {max(0, accepted - unfinished)} ({snapshot.finished_per_second:.1f}/s)"
        f"  in flight {sum(one.claimed for one in work)}"
        f"  in doubt {sum(one.in_doubt for one in work)}"
        f"  held {sum(one.held for one in work)}"
        f"  effects {sum(one.effects for one in snapshot.effects.values())}"
        f"  workers {sum(one.is_alive for one in snapshot.instances)}"
    )


def _head(snapshot: Snapshot, urls: Sequence[str]) -> RenderableType:
    title = Text.assemble(
        ("Leasehold ", "bold"),
        f"{snapshot.elapsed_seconds:5.0f} s   {snapshot.finished_per_second:.1f} finished/s   ",
        ("Ctrl-C stops everything", "dim"),
    )
    return Group(title, *(Text(url, overflow="fold", style="cyan") for url in urls))


def _section(title: str, content: RenderableType) -> RenderableType:
    return Padding(Group(Rule(title, align="left", style="dim"), content), (0, 1, 0, 0))


def _table(*columns: str) -> Table:
    """Make a table without lines; a column whose name ends in a space is one of numbers."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    for column in columns:
        is_number = column.endswith(" ")
        table.add_column(
            column.strip(),
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if is_number else "left",
            # Where there is too little room, reasons are cut first.
            ratio=1 if column == "reason" else None,
        )
    return table


def _instances(instances: Sequence[SeenInstance]) -> Table:
    table = _table("instance", "role", "claims ", "seen ")
    for one in instances[:_PEOPLE_SHOWN]:
        table.add_row(
            short_holder(one.instance_id),
            one.role,
            str(one.claims),
            f"{one.seen_seconds:.1f}s",
            style="" if one.is_alive else "dim red",
        )
    return table


def _leases(leases: Sequence[SeenLease]) -> Table:
    table = _table("lease", "holder", "epoch ", "left ")
    for one in leases[:_PEOPLE_SHOWN]:
        left = f"{one.left_seconds:.1f}s" if one.left_seconds > 0 else "over"
        table.add_row(one.lease_name, short_holder(one.holder_id), str(one.lease_epoch), left)
    return table


def _targets(snapshot: Snapshot) -> Table:
    table = _table(
        "target", "class", "accepted ", "finished ", "flight ", "doubt ", "held ", "effects ",
        "doubled ",
    )  # fmt: skip
    for target, guarantee in TARGETS.items():
        work = snapshot.work.get(target)
        effects = snapshot.effects.get(guarantee)
        accepted = snapshot.accepted.get(target, 0)
        table.add_row(
            target,
            guarantee,
            str(accepted),
            str(max(0, accepted - (work.unfinished if work else 0))),
            str(work.claimed if work else 0),
            _marked(work.in_doubt if work else 0, "yellow"),
            _marked(work.held if work else 0, "bold yellow"),
            str(effects.effects if effects else 0),
            _marked(effects.doubled_keys if effects else 0, "bold red"),
        )
    return table


def _ledger(rows: Sequence[LedgerRow]) -> Table:
    table = _table("time", "intent", "target", "try ", "state", "reason", "holder")
    for row in rows:
        table.add_row(
            f"{row.finished_at.astimezone():%H:%M:%S}",
            f"..{row.intent_id.hex[-8:]}",
            row.target,
            str(row.attempt_no),
            Text(row.state, style=_STATE_STYLES.get(row.state, "")),
            " ".join(part for part in (row.code, row.reason) if part),
            short_holder(row.holder),
        )
    return table


def _marked(count: int, style: str) -> Text:
    return Text(str(count), style=style if count else "")


def short_holder(holder: str) -> str:
    """Shorten host-process-chance to process-chance: here all run on one host."""
    return "-".join(holder.rsplit("-", 2)[-2:])
