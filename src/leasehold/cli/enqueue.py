"""`leasehold enqueue`: enqueue one intent, or a file of intents.

The lines of a file are parsed, enqueued in batches and counted. Nothing is held in memory but one
batch, so the file may have any length.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self

import typer
from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from leasehold.cli.backend import Endpoint
from leasehold.cli.options import ApiUrl, DatabaseUrl, parse_duration_or_time, warn
from leasehold.cli.output import echo
from leasehold.domain.errors import AccessDenied, DatabaseUnavailable, InvalidArgument
from leasehold.domain.intent import KeyScope, NewIntent
from leasehold.domain.verdict import BatchVerdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from leasehold.cli.backend import Backend
    from leasehold.client.responses import BulkResult

# A payload of 1 MiB, with every character escaped.
LINE_BYTES_MAX = 8 * 1024 * 1024
BATCH_LINES = 1000
BATCH_BYTES = 16 * 1024 * 1024
PROBLEMS_SHOWN = 20
# Two spellings of one field: a line that gives either overrides both defaults.
_ALTERNATIVES = (("due_at", "delay_seconds"), ("deadline_at", "deadline_seconds"))


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
        str | None,
        typer.Option(
            help="Stream: its intents are submitted in order, if the target has scope stream; "
            "otherwise only a label."
        ),
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
        echo(receipt.intent_id)
        await warn_of_idle_targets(backend, {intent.target})
    if not receipt.is_new:
        echo("Already enqueued before, with the same key and payload.", err=True)


class LineFields(BaseModel):
    """The JSON object of a line: the fields of NewIntent, all optional."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str | None = None
    payload: Any = None
    body: Base64Bytes | None = None
    content_type: str | None = None
    idempotency_key: str | None = None
    key_scope: KeyScope | None = None
    stream: str | None = None
    priority: int | None = None
    due_at: AwareDatetime | None = None
    delay_seconds: float | None = None
    deadline_at: AwareDatetime | None = None
    deadline_seconds: float | None = None
    metadata: dict[str, Any] | None = None
    trace_context: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line: an intent, or the reason why it is not one. `end` is its offset in bytes."""

    number: int
    end: int
    intent: NewIntent | None
    problem: str | None


def enqueue_file(endpoint: Endpoint, file: Path | None, default: NewIntent) -> bool:
    """Enqueue every line and print a summary; False if any was refused."""
    summary = Summary()
    try:
        with ExitStack() as stack:
            source, size = _open(file, stack)
            progress = stack.enter_context(_Progress(size))
            asyncio.run(_enqueue(endpoint, parse_lines(source, default), summary, progress))
    finally:
        summary.print()  # also after an error: accepted lines stay accepted
    return not summary.has_refused


def _open(file: Path | None, stack: ExitStack) -> tuple[BinaryIO, int | None]:
    if file is None or str(file) == "-":
        if file is None and sys.stdin.isatty():
            raise InvalidArgument("nothing to enqueue: use --payload or --file, or pipe lines in")
        return sys.stdin.buffer, None
    try:
        return stack.enter_context(file.open("rb")), file.stat().st_size
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None


async def _enqueue(
    endpoint: Endpoint, lines: Iterator[Line], summary: Summary, progress: _Progress
) -> None:
    targets: set[str] = set()
    async with endpoint.connect() as backend:
        for batch in _batches(lines):
            parsed = [(line, line.intent) for line in batch if line.intent is not None]
            results = await backend.enqueue_many([intent for _, intent in parsed])
            for line in batch:
                if line.problem is not None:
                    summary.add_refused(line.number, BatchVerdict.INVALID, line.problem)
            accepted: set[str] = set()
            for (line, intent), result in zip(parsed, results, strict=True):
                summary.add(line.number, result)
                if result.verdict.is_committed:
                    accepted.add(intent.target)
            progress.advance_to(batch[-1].end, summary.count)
            await warn_of_idle_targets(backend, accepted - targets)
            targets |= accepted


async def warn_of_idle_targets(backend: Backend, targets: Collection[str]) -> None:
    """Warn of targets whose intents wait, because no instance of this release submits them."""
    if not targets:
        return
    with suppress(AccessDenied, DatabaseUnavailable):  # the intents are accepted all the same
        for target, reason in (await backend.unexecutable(targets)).items():
            warn(f"no instance of this release submits intents of {target}: {reason}")


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    begin = 0
    for line in lines:
        batch.append(line)
        if len(batch) == BATCH_LINES or line.end - begin >= BATCH_BYTES:
            yield batch
            batch, begin = [], line.end
    if batch:
        yield batch


def parse_lines(source: BinaryIO, default: NewIntent) -> Iterator[Line]:
    """Parse intents line by line; a field that a line leaves out is taken from `default`."""
    number, end = 0, 0
    while raw := source.readline(LINE_BYTES_MAX):
        number, end = number + 1, end + len(raw)
        if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
            raise InvalidArgument(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        if raw.isspace():
            continue
        try:
            yield Line(number, end, _parse_intent(raw, default), None)
        except InvalidArgument as error:
            yield Line(number, end, None, str(error))


def _parse_intent(raw: bytes, default: NewIntent) -> NewIntent:
    try:
        line = LineFields.model_validate(parse_json(raw.decode()))
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"not valid UTF-8: {error.reason} at byte {error.start}") from None
    except ValidationError as error:
        problems = [_problem(one["loc"], one["type"], one["msg"]) for one in error.errors()]
        raise InvalidArgument("; ".join(problems)) from None
    given = {name: getattr(line, name) for name in line.model_fields_set}
    fields = {name: getattr(default, name) for name in NewIntent.__slots__}
    for pair in _ALTERNATIVES:
        if not given.keys().isdisjoint(pair):
            fields |= dict.fromkeys(pair)
    return NewIntent(**fields | given)


def _problem(location: tuple[int | str, ...], kind: str, message: str) -> str:
    if not location:
        return 'each line must be a JSON object such as {"payload": {}, "idempotency_key": "k-1"}'
    if kind == "extra_forbidden":
        return f'unknown field {location[0]!r}: put the data to send under "payload"'
    return f"{location[0]}: {message}"


def parse_json(text: str) -> Any:  # noqa: ANN401 (any JSON)
    """Parse JSON; a number keeps every digit."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidArgument("the JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidArgument(f"not valid JSON: {error}") from None


def _refuse_constant(text: str) -> float:
    raise InvalidArgument(f"not valid JSON: {text}")


@dataclass(slots=True)
class Summary:
    """The number of lines per verdict, and the first refused lines."""

    verdicts: Counter[BatchVerdict] = field(default_factory=Counter[BatchVerdict])
    problems: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def count(self) -> int:
        """The number of lines so far."""
        return self.verdicts.total()

    @property
    def has_refused(self) -> bool:
        """Whether any line was refused."""
        return any(not verdict.is_committed for verdict in self.verdicts)

    def add(self, line: int, result: BulkResult) -> None:
        """Count the result of a line."""
        if result.verdict.is_committed:
            self.verdicts[result.verdict] += 1
        else:
            self.add_refused(line, result.verdict, result.problem or "")

    def add_refused(self, line: int, verdict: BatchVerdict, problem: str) -> None:
        """Count a refused line."""
        self.verdicts[verdict] += 1
        self.problems.append((line, f"{verdict}: {problem}"))
        self.problems = sorted(self.problems)[:PROBLEMS_SHOWN]

    def print(self) -> None:
        """Print the counts on stdout and the problems on stderr."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        echo(f"{self.count} lines: {counts}" if counts else "0 lines")
        refused = sum(count for verdict, count in self.verdicts.items() if not verdict.is_committed)
        for line, problem in self.problems:
            echo(f"line {line}: {problem}", err=True)
        if refused > len(self.problems):
            echo(f"and {refused - len(self.problems)} more", err=True)


class _Progress:
    """A progress bar on stderr if that is a terminal; by bytes, as the line count is unknown."""

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

    def advance_to(self, end: int, lines: int) -> None:
        """Move the bar to the end of a batch."""
        self._progress.update(self._task, completed=end, lines=lines)
