"""Leader benchmark: failover time, throughput compared with a worker, rebuild, cost of followers.

Failover is the time from the signal to the successor's first call. The lease is 5 seconds here, and
followers try at least every second. The reference is what client-go's leader election promises with
its published timings (lease 15, renew 10, retry 2): at most lease + retry after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import scripts
from benchmarks.peer_leasehold import CONCURRENCY_NAME, publish
from benchmarks.peer_process import EngineFailed, ask, filled_database
from leasehold.domain.contract import Contract
from leasehold.domain.outcome import Accepted
from leasehold.gateway.python.terms import PythonTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.server import BenchmarkServer
    from leasehold.gateway.protocol import Submission

    Add = Callable[..., None]

CLIENT_GO_LEASE_SECONDS, CLIENT_GO_RETRY_SECONDS = 15.0, 2.0
TARGET = "led"
CALLS_FILE = "BENCHMARK_CALLS_FILE"
_WAIT_SECONDS = 60.0
_ITEMS_PER_SLOT = 1_000  # at most: a few slots are slow


@dataclass(frozen=True)
class Amounts:
    lease_seconds: float = 5.0
    runs: int = 20
    drained: int = 50_000
    rounds: int = 5
    slots: tuple[int, ...] = (10, 100, 3_000)  # the default first
    backlog: int = 1_000_000
    followers: int = 20
    idle_seconds: float = 15.0


FULL = Amounts()
SMOKE = Amounts(
    lease_seconds=2.0,
    runs=1,
    drained=200,
    rounds=1,
    slots=(100,),
    backlog=2_000,
    followers=2,
    idle_seconds=2.0,
)


async def record_call(submission: Submission) -> Accepted:
    """The gateway: records when a call began and in which process."""
    line = f"{time.monotonic()} {os.getpid()} {submission.intent_id}\n"
    with open(os.environ[CALLS_FILE], "a") as file:  # noqa: ASYNC230, PTH123 (one short line)
        file.write(line)
    return Accepted()


class ClusterBenchmark:
    """All measurements of scope cluster."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, add: Add) -> None:
        self.server = server
        self.amounts = amounts
        self.add = add
        self.times = {
            "LEASEHOLD_CLUSTER_LEASE_SECONDS": f"{amounts.lease_seconds:g}",
            "LEASEHOLD_CLUSTER_RENEW_SECONDS": f"{amounts.lease_seconds / 5:g}",
            "LEASEHOLD_CLUSTER_ACQUIRE_SECONDS": "1",
            "LEASEHOLD_POOL_WAIT_SECONDS": f"{amounts.lease_seconds / 10:g}",
            "LEASEHOLD_STATEMENT_SECONDS": f"{amounts.lease_seconds / 5:g}",
            "LEASEHOLD_LOCK_SECONDS": f"{amounts.lease_seconds / 10:g}",
            "LEASEHOLD_LOG_FORMAT": "json",
        }

    def run(self) -> None:
        self.failover()
        self.throughput()
        self.rebuild()
        self.idle_followers()

    def failover(self) -> None:
        reference = "client-go: crash to next leader, at most"
        self.add(reference, CLIENT_GO_LEASE_SECONDS + CLIENT_GO_RETRY_SECONDS, "s")
        for elector, number, name in (
            ("row", signal.SIGKILL, "row lease: SIGKILL to the successor's first call"),
            ("row", signal.SIGTERM, "row lease: SIGTERM to the successor's first call"),
            ("advisory", signal.SIGKILL, "advisory lock: SIGKILL to the successor's first call"),
        ):
            found = self.failovers(elector, number)
            for percent, value in (("p50", statistics.median(found)), ("p99", max(found))):
                ratio = value / (CLIENT_GO_LEASE_SECONDS + CLIENT_GO_RETRY_SECONDS)
                self.add(f"{name}, {percent}", value, "s", reference, ratio)
                if (elector, number) == ("row", signal.SIGKILL):
                    self.add(
                        f"{name}, {percent}, in leases",
                        value / self.amounts.lease_seconds,
                        "leases",
                    )

    def failovers(self, elector: str, number: signal.Signals) -> list[float]:
        with (
            filled_database(self.server, "leasehold_cluster", 0, 0) as database,
            tempfile.TemporaryDirectory() as folder,
        ):
            gateway = PythonTerms(function="benchmarks.cluster:record_call")
            contract = Contract(
                target=TARGET,
                scope="cluster",
                guarantee="keyed",
                gateway=gateway,
                call_timeout_seconds=1,
                connect_timeout_seconds=0.5,
            )
            asyncio.run(publish(database.url, contract))
            calls_file = Path(folder) / "calls_file"
            calls_file.touch()
            environment = self.times | {
                "LEASEHOLD_DATABASE_URL": database.url,
                "LEASEHOLD_ELECTOR": elector,
                CALLS_FILE: str(calls_file),
            }
            with (
                running(2, environment, folder) as members,
                psycopg.connect(database.url, autocommit=True) as connection,
            ):
                return [
                    self.one(members, connection, calls_file, number)
                    for _ in range(self.amounts.runs)
                ]

    def one(
        self,
        members: Members,
        connection: psycopg.Connection[Any],
        calls_file: Path,
        number: signal.Signals,
    ) -> float:
        leader, _ = self.call(connection, calls_file)
        sent_at = time.monotonic()
        members.end(leader, number)
        successor, begun_at = self.call(connection, calls_file)
        if successor == leader:
            raise EngineFailed("the leader survived its signal")
        members.replace()
        return begun_at - sent_at

    def call(self, connection: psycopg.Connection[Any], calls_file: Path) -> tuple[int, float]:
        """Enqueue one intent and wait for its call; return its process and time."""
        [intent_id] = connection.execute(
            "SELECT leasehold.enqueue_intent(%s, '1')", [TARGET]
        ).fetchone() or [None]
        ends_at = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < ends_at:
            for line in calls_file.read_text().splitlines():
                begun_at, process, called = line.split()
                if called == str(intent_id):
                    return int(process), float(begun_at)
            time.sleep(0.005)
        raise EngineFailed("no process made the call")

    def throughput(self) -> None:
        """A leader writes no claims, but waits for its marks."""
        for slots in self.amounts.slots:
            items = min(self.amounts.drained, slots * _ITEMS_PER_SLOT)
            drain = f"drain of {items:,} with {slots:,} slots"
            found = self.drained(slots, items).values()
            one, leader = map(statistics.median, found)
            self.add(f"{drain}: one competing worker", one, "items/s")
            self.add(
                f"{drain}: one leader",
                leader,
                "items/s",
                f"{drain}: one competing worker",
                leader / one,
            )

    def drained(self, slots: int, items: int) -> dict[str, list[float]]:
        rates: dict[str, list[float]] = {"leasehold": [], "leasehold_cluster": []}
        os.environ[CONCURRENCY_NAME] = str(slots)
        for _ in range(self.amounts.rounds):
            for name, found in rates.items():
                with filled_database(self.server, name, items, 120) as database:
                    drained = ask(
                        name, "drain", database.url, str(database.items), "120", seconds=180
                    )
                found.append(drained["items"] / drained["seconds"])
        del os.environ[CONCURRENCY_NAME]
        return rates

    def rebuild(self) -> None:
        """Time from election to the built schedule, and memory of the leader then."""
        found: dict[int, tuple[float, float]] = {}
        for backlog in (1_000, self.amounts.backlog):
            with (
                filled_database(self.server, "leasehold_cluster", 0, 0) as database,
                tempfile.TemporaryDirectory() as folder,
            ):
                with psycopg.connect(database.url, autocommit=True) as connection:
                    scripts.fill_cluster(connection, backlog)
                with running(
                    1, self.times | {"LEASEHOLD_DATABASE_URL": database.url}, folder
                ) as one:
                    found[backlog] = one.seconds_to_build(), one.resident_mib()
        (few_seconds, few_memory), (many_seconds, many_memory) = found.values()
        few, many = (f"{backlog:,} pending" for backlog in found)
        self.add(f"elected to schedule built, {few}", few_seconds * 1e3, "ms")
        self.add(
            f"elected to schedule built, {many}",
            many_seconds * 1e3,
            "ms",
            f"elected to schedule built, {few}",
            many_seconds / few_seconds,
        )
        self.add(f"memory of the leader, {few}", few_memory, "MiB")
        self.add(
            f"memory of the leader, {many}",
            many_memory,
            "MiB",
            f"memory of the leader, {few}",
            many_memory / few_memory,
        )

    def idle_followers(self) -> None:
        """Transactions per second of idle followers at default timings, next to one leader."""
        count = self.amounts.followers
        with (
            filled_database(self.server, "leasehold_cluster", 0, 0) as database,
            tempfile.TemporaryDirectory() as folder,
            psycopg.connect(database.url, autocommit=True) as connection,
        ):
            environment = {"LEASEHOLD_DATABASE_URL": database.url, "LEASEHOLD_LOG_FORMAT": "json"}
            rates = []
            for members in (1, 1 + count):
                with running(members, environment, folder):
                    rates.append(transactions_per_second(connection, self.amounts.idle_seconds))
        alone = "transactions on the database by an idle leader"
        self.add(alone, rates[0], "1/s")
        together = f"transactions on the database by an idle leader and {count} followers"
        self.add(together, rates[1], "1/s", alone, rates[1] / rates[0])


class Members:
    """`leasehold worker` processes, each with its own log."""

    def __init__(self, count: int, environment: dict[str, str], folder: str) -> None:
        self._environment = os.environ | environment
        self._folder = Path(folder)
        self._count = 0
        self._processes: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        for _ in range(count):
            self.replace()

    def replace(self) -> None:
        """Start another process and wait until it has started."""
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "leasehold", "worker"],
                env=self._environment,
                cwd=Path(__file__).parent.parent,
                stdout=stream,
                stderr=stream,
            )
        self._processes[process.pid] = (process, log)
        self.event(log, "worker_started")

    def end(self, pid: int, number: signal.Signals) -> None:
        process, _ = self._processes.pop(pid)
        process.send_signal(number)

    def event(self, log: Path, name: str) -> dict[str, Any]:
        ends_at = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < ends_at:
            for line in log.read_text().splitlines():
                if line.startswith("{") and f'"{name}"' in line:
                    return json.loads(line)
            time.sleep(0.01)
        raise EngineFailed(f"no {name}: {log.read_text()[-300:]}")

    def seconds_to_build(self) -> float:
        [(_, log)] = self._processes.values()
        built = self.event(log, "due_queue_built")
        acquired = self.event(log, "leader_acquired")
        return moment(built) - moment(acquired)

    def resident_mib(self) -> float:
        [pid] = self._processes
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def close(self) -> None:
        for process, _ in self._processes.values():
            process.kill()
            process.wait()


def moment(line: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(line["timestamp"]).timestamp()


def transactions_per_second(connection: psycopg.Connection[Any], seconds: float) -> float:
    statement = (
        "SELECT xact_commit + xact_rollback FROM pg_stat_database"
        " WHERE datname = current_database()"
    )
    counts = []
    for wait in (0.0, seconds):
        time.sleep(wait)
        connection.execute("SELECT pg_stat_clear_snapshot()")
        [count] = connection.execute(statement).fetchone() or [0]
        counts.append(count)
    return (counts[1] - counts[0]) / seconds


@contextmanager
def running(count: int, environment: dict[str, str], folder: str) -> Iterator[Members]:
    members = Members(count, environment, folder)
    try:
        yield members
    finally:
        members.close()
