"""`leasehold enqueue`: hand in one intent, or a file of them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated, BinaryIO, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from leasehold.cli.enqueue_lines import parse_json, read_lines
from leasehold.cli.enqueue_ways import opened_way
from leasehold.cli.moments import seconds_or_moment
from leasehold.cli.place import ApiUrl, DatabaseUrl, Place
from leasehold.client.responses import Handed, HandedVerdict
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import NewIntent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.cli.enqueue_lines import Read

BATCH = 1000
BATCH_BYTES = 16 * 1024 * 1024
PROBLEMS_MAX = 20


def enqueue(
    target: Annotated[str, typer.Argument(help="Where to; a line of a file may say otherwise.")],
    database_url: DatabaseUrl = None,
    api_url: ApiUrl = None,
    *,
    payload: Annotated[
        str | None, typer.Option(help="JSON of one intent; - reads it from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help='Lines of JSON such as {"payload": {}, "idempotency_key": "k"}; - is stdin, '
            "also the default."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The idempotency key of the one intent.")] = None,
    stream: Annotated[str | None, typer.Option(help="The stream whose order it keeps.")] = None,
    delay: Annotated[str | None, typer.Option(help="When: 90, 15m, 2h, 1d, or a moment.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Not later than: 90, 15m, 2h, 1d, or a moment.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 first to 3 last; 1 by default.")] = None,
) -> None:
    """Enqueue one intent and print its id, or a file of intents and print what became of them.

    Exit code 1 if any was refused. Accepted ones stay accepted: with keys, run it again.
    """
    if payload is not None and file is not None:
        raise InvalidArgument("--payload and --file exclude each other: leave one out")
    delay_seconds, due_at = seconds_or_moment("--delay", delay) if delay else (None, None)
    deadline_seconds, deadline_at = (
        seconds_or_moment("--deadline", deadline) if deadline else (None, None)
    )
    default = NewIntent(
        target=target,
        payload=None if payload is None else _one_payload(payload),
        idempotency_key=key,
        stream=stream,
        priority=priority,
        due_at=due_at,
        delay_seconds=delay_seconds,
        deadline_at=deadline_at,
        deadline_seconds=deadline_seconds,
    )
    place = Place.read(database_url, api_url, "leasehold enqueue")
    if payload is not None:
        asyncio.run(_enqueue_one(place, default))
    elif key is not None:
        raise InvalidArgument("--key is for one --payload: in a file each line has its own")
    else:
        _enqueue_file(place, file, default)


def _one_payload(text: str) -> object:
    value = parse_json(sys.stdin.read() if text == "-" else text)
    if value is None:
        raise InvalidArgument("the payload is null, but must be any other JSON")
    return value


async def _enqueue_one(place: Place, new: NewIntent) -> None:
    async with opened_way(place) as way:
        receipt = await way.enqueue(new)
    typer.echo(receipt.intent_id)
    if not receipt.is_new:
        typer.echo("It was enqueued before, under the same key with the same payload.", err=True)


def _enqueue_file(place: Place, file: Path | None, default: NewIntent) -> None:
    summary = Summary()
    try:
        with ExitStack() as opened:
            lines, size = _opened(file, opened)
            progress = opened.enter_context(_Progress(size))
            asyncio.run(_enqueue_lines(place, read_lines(lines, default), summary, progress))
    finally:
        summary.print()  # also when it ends early: what was accepted stays accepted
    if summary.has_refused:
        raise typer.Exit(code=1)


def _opened(file: Path | None, opened: ExitStack) -> tuple[BinaryIO, int | None]:
    if file is None or str(file) == "-":
        if file is None and sys.stdin.isatty():
            raise InvalidArgument("nothing to enqueue: give --payload or --file, or pipe lines in")
        return sys.stdin.buffer, None
    try:
        return opened.enter_context(file.open("rb")), file.stat().st_size
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}") from None


async def _enqueue_lines(
    place: Place, lines: Iterator[Read], summary: Summary, progress: _Progress
) -> None:
    async with opened_way(place) as way:
        for batch in _batches(lines):
            asked = [(line, line.intent) for line in batch if line.intent is not None]
            answers = await way.enqueue_many([intent for _, intent in asked])
            for line in batch:
                if line.problem is not None:
                    summary.refuse(line.number, HandedVerdict.INVALID, line.problem)
            for (line, _), answer in zip(asked, answers, strict=True):
                summary.add(line.number, answer)
            progress.reach(batch[-1].end, summary.count)


def _batches(lines: Iterator[Read]) -> Iterator[list[Read]]:
    batch: list[Read] = []
    sent = 0
    for line in lines:
        batch.append(line)
        if len(batch) == BATCH or line.end - sent >= BATCH_BYTES:
            yield batch
            batch, sent = [], line.end
    if batch:
        yield batch


@dataclass(slots=True)
class Summary:
    """What became of all lines, and the first of those that were refused."""

    verdicts: Counter[HandedVerdict] = field(default_factory=Counter[HandedVerdict])
    problems: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def count(self) -> int:
        """How many lines there were."""
        return self.verdicts.total()

    @property
    def has_refused(self) -> bool:
        """Whether some line was refused."""
        return any(not verdict.is_good for verdict in self.verdicts)

    def add(self, line: int, answer: Handed) -> None:
        """Count the verdict on a line."""
        if answer.verdict.is_good:
            self.verdicts[answer.verdict] += 1
        else:
            self.refuse(line, answer.verdict, answer.problem or "")

    def refuse(self, line: int, verdict: HandedVerdict, problem: str) -> None:
        """Count a line that was refused."""
        self.verdicts[verdict] += 1
        self.problems.append((line, f"{verdict}: {problem}"))
        self.problems = sorted(self.problems)[:PROBLEMS_MAX]

    def print(self) -> None:
        """Print the counts, and on stderr the problems."""
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        typer.echo(f"{self.count} lines: {told}" if told else "0 lines")
        refused = sum(count for verdict, count in self.verdicts.items() if not verdict.is_good)
        for line, problem in self.problems:
            typer.echo(f"line {line}: {problem}", err=True)
        if refused > len(self.problems):
            typer.echo(f"and {refused - len(self.problems)} more", err=True)


class _Progress:
    """A bar on stderr where that is a terminal; by bytes, since nobody has counted the lines."""

    def __init__(self, size: int | None) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[lines]} lines"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %" if size else ""),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("enqueue", total=size, lines=0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def reach(self, end: int, lines: int) -> None:
        """Move to the end of a batch."""
        self._progress.update(self._task, completed=end, lines=lines)
