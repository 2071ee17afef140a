"""The output of the demo: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from leasehold.cli.output import echo
from leasehold.demo.traffic import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from uuid import UUID

    from rich.console import RenderableType

    from leasehold.demo.traffic import EffectCount
    from leasehold.store.demo import InstanceRow, LeaseRow, LedgerRow, UnfinishedRow

LINE_SECONDS = 2.0
_EVENTS_KEPT = 40
_WIDE = 120  # columns, for whole ids
_EVENTS_SHOWN = 3
_HOLDERS_SHOWN = 3
_STATE_STYLES = {
    "DISPATCHED": "green",
    "FAILED": "red",
    "RETRYABLE": "yellow",
    "ZOMBIE_REQUEUE": "magenta",
    "IN_DOUBT": "bold yellow",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the view shows at one time."""

    elapsed_seconds: float
    enqueued: Mapping[str, int]
    instances: Sequence[InstanceRow]
    leases: Sequence[LeaseRow]
    unfinished: Mapping[str, UnfinishedRow]
    finished_per_second: float
    ledger: Sequence[LedgerRow]
    effects: Mapping[str, EffectCount]


class View:
    """Shows events and snapshots; `on_closed` is called when nobody reads the output any more."""

    def __init__(self, *, is_live: bool, on_closed: Callable[[], None]) -> None:
        self.began_at = time.monotonic()
        self._is_live = is_live
        self._on_closed = on_closed
        self._addresses: dict[str, str] = {}
        self._events: deque[str] = deque(maxlen=_EVENTS_KEPT)
        self._live: Live | None = None
        self._line_due_at = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """The time since the demo began."""
        return time.monotonic() - self.began_at

    @property
    def is_due(self) -> bool:
        """Whether to show a snapshot now: always on a screen, every 2 seconds as a line."""
        return self._live is not None or self.elapsed_seconds >= self._line_due_at

    def report(self, event: str) -> None:
        """Show an event."""
        if self._live is None:
            self.write(f"{self.elapsed_seconds:6.1f} s  {event}" if self._addresses else event)
        else:
            self._events.append(f"{self.elapsed_seconds:6.1f} s  {event}")

    def write(self, line: str) -> None:
        """Print a line."""
        try:
            echo(line)
        except OSError:
            # The reader is gone. Buffered output would fail again at exit, so drop it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._on_closed()

    @contextmanager
    def running(self, addresses: dict[str, str]) -> Generator[None]:
        """Show the run. In a terminal, use the whole screen; print the events afterwards."""
        self.began_at = time.monotonic()
        self._addresses = addresses
        for name, address in addresses.items():
            self.write(f"{name:8s} {address}")
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
        """Show the current state."""
        if self._live is not None:
            width, height = self._live.console.size
            self._live.update(self._screen(snapshot, width, height), refresh=True)
        else:
            self._line_due_at = snapshot.elapsed_seconds + LINE_SECONDS
            self.write(status_line(snapshot))

    def _screen(self, snapshot: Snapshot, width: int, height: int) -> RenderableType:
        """Fill the window; the ledger takes the remaining height."""
        # Without a label the long URL of the database starts its own line, and can be copied.
        urls = [self._addresses["database"]]
        urls.append("   ".join(f"{name} {self._addresses[name]}" for name in ("API", "gateway")))
        head = 1 + sum(math.ceil(len(line) / width) for line in urls)
        layout = Layout()
        layout.split_column(
            Layout(_head(snapshot, urls), size=head),
            Layout(name="holders", size=2 + _HOLDERS_SHOWN),
            Layout(_section("Targets", _targets(snapshot)), size=2 + len(TARGETS)),
            Layout(_section("Latest ledger rows", ledger_table(snapshot.ledger[:height], width))),
            Layout(_section("Events", self._event_lines()), size=1 + _EVENTS_SHOWN),
        )
        layout["holders"].split_row(
            Layout(_section("Instances", _instances(snapshot.instances)), size=width * 40 // 80),
            Layout(_section("Leases", _leases(snapshot.leases))),
        )
        return layout

    def _event_lines(self) -> RenderableType:
        shown = list(self._events)[-_EVENTS_SHOWN:]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in shown))


def status_line(snapshot: Snapshot) -> str:
    """Format the counts as one line."""
    rows = snapshot.unfinished.values()
    enqueued = sum(snapshot.enqueued.values())
    unfinished = sum(one.unfinished for one in rows)
    return (
        f"{snapshot.elapsed_seconds:6.1f} s  enqueued {enqueued}"
        f"  finished {max(0, enqueued - unfinished)} ({snapshot.finished_per_second:.1f}/s)"
        f"  in flight {sum(one.claimed for one in rows)}"
        f"  in doubt {sum(one.in_doubt for one in rows)}"
        f"  held {sum(one.held for one in rows)}"
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
    """Make a table without borders; ">" before a name aligns the column to the right."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if column.startswith(">") else "left",
            # In a narrow window, reasons are truncated first.
            ratio=1 if column == "reason" else None,
        )
    return table


def _instances(instances: Sequence[InstanceRow]) -> Table:
    table = _table("instance", "role", ">claims", ">streams", ">seen")
    for one in instances[:_HOLDERS_SHOWN]:
        table.add_row(
            short_holder(one.instance_id),
            one.role,
            str(one.claims),
            str(one.streams),
            f"{one.seen_seconds:.1f}s",
            style="" if one.is_alive else "dim red",
        )
    return table


def _leases(leases: Sequence[LeaseRow]) -> Table:
    table = _table("lease", "holder", ">epoch", ">left")
    for one in leases[:_HOLDERS_SHOWN]:
        left = f"{one.left_seconds:.1f}s" if one.left_seconds > 0 else "expired"
        table.add_row(one.lease_name, short_holder(one.holder_id), str(one.lease_epoch), left)
    return table


def _targets(snapshot: Snapshot) -> Table:
    table = _table(
        "target", "guarantee", ">enqueued", ">finished", ">in flight", ">in doubt", ">held",
        ">effects", ">doubled",
    )  # fmt: skip
    for target, guarantee in TARGETS.items():
        row = snapshot.unfinished.get(target)
        effects = snapshot.effects.get(target)
        enqueued = snapshot.enqueued.get(target, 0)
        table.add_row(
            target,
            guarantee,
            str(enqueued),
            str(max(0, enqueued - (row.unfinished if row else 0))),
            str(row.claimed if row else 0),
            _highlighted(row.in_doubt if row else 0, "yellow"),
            _highlighted(row.held if row else 0, "bold yellow"),
            str(effects.effects if effects else 0),
            _highlighted(effects.doubled_keys if effects else 0, "bold red"),
        )
    return table


def ledger_table(rows: Sequence[LedgerRow], width: int) -> Table:
    """Show ledger rows: with whole ids, to be copied, if the window is wide enough for them."""
    is_wide = width >= _WIDE
    table = _table("time", "intent", "target", ">try", "state", "reason", "holder")
    for row in rows:
        table.add_row(
            f"{row.finished_at.astimezone():%H:%M:%S}",
            str(row.intent_id) if is_wide else short_id(row.intent_id),
            row.target,
            str(row.attempt_no),
            Text(row.state, style=_STATE_STYLES.get(row.state, "")),
            " ".join(part for part in (row.code, row.reason) if part),
            short_holder(row.holder),
        )
    return table


def _highlighted(count: int, style: str) -> Text:
    return Text(str(count), style=style if count else "")


def short_id(intent_id: UUID) -> str:
    """Shorten an id to the part that differs between intents of one moment and one batch."""
    return str(intent_id)[15:25]


def short_holder(holder: str) -> str:
    """Shorten host-pid-random to pid-random: the demo runs on one host."""
    return "-".join(holder.rsplit("-", 2)[-2:])
