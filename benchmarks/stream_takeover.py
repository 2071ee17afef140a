"""Takeover benchmark of streams: how long a stream stands still when its holder ends.

The first expiry is 3 seconds here, and the second 3 seconds later. A takeover lasts from the signal
to the successor's first call in that stream. All calls of the run are recorded with their beginning
and end, and those of one stream that overlap are counted: there must be none.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.cluster import CALLS_FILE, Members, running
from benchmarks.peer_leasehold import publish
from benchmarks.peer_process import EngineFailed, filled_database
from leasehold.domain.contract import Contract
from leasehold.gateway.python.terms import PythonTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.server import BenchmarkServer
    from leasehold.gateway.protocol import Submission

    Add = Callable[..., None]

TARGET = "ordered"
LONG_CALL_SECONDS = 3.5
SHORT_CALL_SECONDS = 0.01
BUSY_STREAMS = 20
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Amounts:
    claim_seconds: float = 3.0
    grace_seconds: float = 3.0
    runs: int = 8
    busy_items: int = 200  # of each stream that is handed over


FULL = Amounts()
SMOKE = Amounts(claim_seconds=1.5, runs=1, busy_items=50)


@dataclass(frozen=True)
class Call:
    """One call in a stream; it may not have ended, if its process was killed."""

    stream: str
    process: int
    begun_at: float
    ended_at: float


async def record_call(submission: Submission) -> None:
    """The gateway: takes as long as the payload says, and records both ends of the call."""
    seconds = submission.payload.value() if submission.payload else 0.0
    _write("begun", submission)
    await asyncio.sleep(seconds)
    _write("ended", submission)


def _write(event: str, submission: Submission) -> None:
    call = f"{submission.intent_id}/{submission.attempt_no}"
    line = f"{event} {time.monotonic()} {os.getpid()} {submission.stream} {call}\n"
    with open(os.environ[CALLS_FILE], "a") as file:  # noqa: PTH123 (one short line)
        file.write(line)


class TakeoverBenchmark:
    """All measurements of holders that end."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, add: Add) -> None:
        self._server = server
        self._amounts = amounts
        self._add = add

    def run(self) -> None:
        calls: list[Call] = []
        for name, measure in (
            ("SIGKILL, a call in flight", self._killed_in_a_call),
            ("SIGKILL, no call in flight", self._killed_between_calls),
            ("SIGTERM, busy stream", self._stopped),
        ):
            with self._scene() as scene:
                found = [measure(scene, number) for number in range(self._amounts.runs)]
                calls += scene.calls()
            for part, value in (("p50", statistics.median(found)), ("longest", max(found))):
                row = f"stream, {name}: to the successor's first call, {part}"
                self._add(row, value, "s")
                if "SIGKILL" in name:
                    expiries = value / self._amounts.claim_seconds
                    self._add(f"{row}, in first expiries", expiries, "expiries")
        self._add(f"calls of one stream that overlap, of {len(calls):,}", overlaps(calls), "calls")

    @contextmanager
    def _scene(self) -> Iterator[Scene]:
        """Two workers on an empty database."""
        claim = self._amounts.claim_seconds
        with (
            filled_database(self._server, "leasehold_stream", 0, 0) as database,
            tempfile.TemporaryDirectory() as folder,
        ):
            asyncio.run(
                publish(
                    database.url,
                    Contract(
                        target=TARGET,
                        scope="stream",
                        guarantee="keyed",
                        gateway=PythonTerms(function="benchmarks.stream_takeover:record_call"),
                        call_timeout_seconds=4,
                        connect_timeout_seconds=1,
                        concurrency=BUSY_STREAMS,
                    ),
                )
            )
            calls_file = Path(folder) / "calls"
            calls_file.touch()
            environment = {
                "LEASEHOLD_DATABASE_URL": database.url,
                "LEASEHOLD_CONCURRENCY": str(BUSY_STREAMS),
                "LEASEHOLD_STREAM_CLAIM_SECONDS": f"{claim:g}",
                "LEASEHOLD_STREAM_GRACE_SECONDS": f"{self._amounts.grace_seconds:g}",
                "LEASEHOLD_HEARTBEAT_SECONDS": f"{claim / 5:g}",
                "LEASEHOLD_POOL_WAIT_SECONDS": f"{claim / 10:g}",
                "LEASEHOLD_STATEMENT_SECONDS": f"{claim / 5:g}",
                "LEASEHOLD_LOCK_SECONDS": f"{claim / 10:g}",
                "LEASEHOLD_LOG_FORMAT": "json",
                CALLS_FILE: str(calls_file),
            }
            with (
                running(2, environment, folder) as members,
                psycopg.connect(database.url, autocommit=True) as connection,
            ):
                yield Scene(members, connection, calls_file)

    def _killed_in_a_call(self, scene: Scene, number: int) -> float:
        stream = f"long-{number}"
        scene.enqueue(stream, LONG_CALL_SECONDS)
        holder = scene.first_call(stream).process
        return scene.end(holder, SIGKILL, stream)

    def _killed_between_calls(self, scene: Scene, number: int) -> float:
        """An open enqueuer makes the holder keep its stream, although it sees no work there."""
        stream = f"open-{number}"
        scene.enqueue(stream, 2 * SHORT_CALL_SECONDS)
        with scene.connection.transaction():
            scene.enqueue(stream, SHORT_CALL_SECONDS)
            holder = scene.first_call(stream).process
            scene.until_ended(stream)
            time.sleep(self._amounts.claim_seconds / 3)  # a heartbeat renews the lease
            scene.kill(holder)
        return scene.seconds_until_another(stream)

    def _stopped(self, scene: Scene, number: int) -> float:
        streams = [f"busy-{number}-{one}" for one in range(BUSY_STREAMS)]
        for stream in streams:
            scene.enqueue(stream, SHORT_CALL_SECONDS, self._amounts.busy_items)
        holder = scene.first_call(streams[0]).process
        seconds = scene.end(holder, SIGTERM, scene.stream_of(holder, streams))
        scene.until_drained()
        return seconds


class Scene:
    """Two workers, and the calls that they made."""

    def __init__(
        self, members: Members, connection: psycopg.Connection[Any], calls_file: Path
    ) -> None:
        self.connection = connection
        self._members = members
        self._calls_file = calls_file
        self._ended: tuple[int, float] = (0, 0.0)  # who was ended last, and when
        self._killed: dict[int, float] = {}

    def enqueue(self, stream: str, seconds: float, items: int = 1) -> None:
        entry = {"target": TARGET, "payload": seconds, "stream": stream}
        self.connection.execute(
            "SELECT leasehold.enqueue_intents(%s)", [json.dumps([entry] * items)]
        )

    def calls(self) -> list[Call]:
        """Return all calls so far. A killed process ended its calls when it was killed."""
        found: dict[str, Call] = {}
        for line in self._calls_file.read_text().splitlines():
            event, at, process, stream, call = line.split()
            if event == "begun":
                never = self._killed.get(int(process), float("inf"))
                found[call] = Call(stream, int(process), float(at), never)
            else:
                found[call] = replace(found[call], ended_at=float(at))
        return list(found.values())

    def first_call(self, stream: str) -> Call:
        return self._wait(lambda: [one for one in self.calls() if one.stream == stream])

    def until_ended(self, stream: str) -> None:
        self._wait(
            lambda: [
                one for one in self.calls() if one.stream == stream and one.ended_at < float("inf")
            ]
        )

    def until_drained(self) -> None:
        """Wait until nothing is pending, so that the next run finds free slots."""
        pending = "SELECT 1 FROM leasehold.outbox_pending LIMIT 1"
        while self.connection.execute(pending).fetchone():
            time.sleep(0.05)

    def stream_of(self, process: int, streams: list[str]) -> str:
        """Return the stream that a process has called last."""
        return [one for one in self.calls() if one.process == process and one.stream in streams][
            -1
        ].stream

    def kill(self, process: int) -> None:
        self._ended = (process, time.monotonic())
        self._killed[process] = self._ended[1]
        self._members.end(process, SIGKILL)

    def end(self, process: int, number: int, stream: str) -> float:
        """Send a signal; return how long it takes until another process calls in the stream."""
        if number == SIGKILL:
            self.kill(process)
        else:
            self._ended = (process, time.monotonic())
            self._members.end(process, SIGTERM)
        return self.seconds_until_another(stream)

    def seconds_until_another(self, stream: str) -> float:
        process, sent_at = self._ended
        call = self._wait(
            lambda: [
                one
                for one in self.calls()
                if one.stream == stream and one.process != process and one.begun_at > sent_at
            ]
        )
        self._members.replace()
        return call.begun_at - sent_at

    def _wait(self, look: Callable[[], list[Call]]) -> Call:
        ends_at = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < ends_at:
            if found := look():
                return found[0]
            time.sleep(0.005)
        raise EngineFailed("no process made the call")


def overlaps(calls: list[Call]) -> int:
    """Count the calls that began while another call of the same stream was running."""
    by_stream: defaultdict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda one: one.begun_at):
        by_stream[call.stream].append(call)
    return sum(
        later.begun_at < earlier.ended_at
        for of_stream in by_stream.values()
        for earlier, later in pairwise(of_stream)
    )
