"""`make bench-endurance`: throughput that lasts, compared with other queues on one server.

A producer keeps a backlog of 4,000 items and a worker makes calls of 1 ms. Nothing helps the
server: autovacuum looks at tables once a minute, as by default. Each engine runs in each cell:

- clean: for five minutes with 256 slots, and shorter with 16 and 64; the last minute is compared
  with the first;
- idle in transaction: a session has written something and does not commit;
- readers of the hot table: four sessions read the engine's busiest table in long transactions;
- readers of another table: the same, on a table of the same size that no engine uses;
- four serve beside it (ours only): a million further intents wait, and four instances of `leasehold
  serve --no-execute` watch the queue;
- slow gateway: calls of 20 ms with 10 slots, which could make 500 calls per second;
- pickup: 300 items per second, enqueued one by one; from commit to call;
- small cache: clean for five minutes, and beside four sessions that scan the hot table without a
  pause, on a server with 256 MB of shared buffers and a `max_wal_size` of 1 GB.

In a disturbed cell the worker first runs undisturbed. "Kept" is the rate at the end of the
disturbance divided by the rate before it. The report also has WAL per job, dead rows and the
bytes that a finished job leaves behind. `--smoke` runs everything for seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console

from benchmarks.endurance_plot import plot
from benchmarks.peer_engine import SLOTS_NAME, WORK_SECONDS_NAME
from benchmarks.peer_process import OURS, EngineFailed, Talk, filled_database
from benchmarks.report import OUT, Row, machine, publish
from benchmarks.server import SETTINGS, SMALL_SETTINGS, BenchmarkServer, benchmark_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peer_process import Database

console = Console(stderr=True)

ENGINES = (OURS, "awa", "pgqueuer")
CELLS = ("slots", "clean", "idle", "readers", "four", "slow", "pickup", "small")
BACKLOG = 4_000
WORK_SECONDS = 0.001
SLOTS_MAX = 256
SLOW_SECONDS = 0.020
SLOW_SLOTS = 10
PICKUPS_PER_SECOND = 300
# A phase goes on until the count of calls was seen to rise twice, or has stood still for so long.
CALLS_SEEN_MIN = 3
STANDSTILL_SECONDS = 60.0
READERS = 4
SERVERS = 4
FOUR_SERVE = "four serve beside it"
SMALL_CLEAN = "small cache, clean"
SMALL_READERS = "small cache, readers without a pause"
# The table of each engine that is written most.
HOT_TABLES = {
    OURS: "leasehold.outbox_pending",
    "pgqueuer": "pgqueuer",
    "awa": "awa.ready_entries",
}


@dataclass(frozen=True)
class Durations:
    """How long each phase lasts at least, in seconds."""

    clean: float = 300.0
    few_slots: float = 60.0
    undisturbed: float = 30.0
    disturbed: float = 90.0
    # The part of a phase whose rate is reported.
    measured: float = 30.0
    minute: float = 60.0
    pickup: float = 30.0
    # Not a duration: how many intents wait beside the backlog in the cell with four servers.
    waiting: int = 1_000_000


# Each phase is measured as a whole.
SMOKE = Durations(
    clean=1.0,
    few_slots=1.0,
    undisturbed=1.0,
    disturbed=1.0,
    measured=1.0,
    minute=1.0,
    pickup=1.0,
    waiting=10_000,
)


@dataclass
class Sample:
    """The state of a run at one moment."""

    at: float
    calls: int
    dead_rows: int
    wal_bytes: int


@dataclass
class Run:
    """One engine in one cell: samples over time, and the times at which its phases began."""

    engine: str
    cell: str
    samples: list[Sample] = field(default_factory=list[Sample])
    phases: dict[str, float] = field(default_factory=dict[str, float])

    def rate(self, begins_at: float, ends_at: float) -> float:
        """Calls per second between two moments of the run."""
        first, last = self._span(begins_at, ends_at)
        return (last.calls - first.calls) / (last.at - first.at) if last.at > first.at else 0.0

    def wal_per_job(self, begins_at: float, ends_at: float) -> float:
        first, last = self._span(begins_at, ends_at)
        jobs = last.calls - first.calls
        return (last.wal_bytes - first.wal_bytes) / jobs if jobs else 0.0

    def _span(self, begins_at: float, ends_at: float) -> tuple[Sample, Sample]:
        """The last samples at two moments, or the first one of the run."""
        until_end = [one for one in self.samples if one.at <= ends_at]
        until_begin = [one for one in until_end if one.at <= begins_at]
        return (until_begin or until_end)[-1 if until_begin else 0], until_end[-1]

    @property
    def peak_dead_rows(self) -> int:
        return max(one.dead_rows for one in self.samples)

    def rates(self) -> list[tuple[float, float]]:
        """Calls per second, second by second."""
        return [
            (later.at - self.samples[0].at, (later.calls - one.calls) / (later.at - one.at))
            for one, later in zip(self.samples, self.samples[1:], strict=False)
            if later.at > one.at
        ]


class Station:
    """A worker and a producer on one database, and what they do from second to second."""

    def __init__(self, database: Database, engine: str, run: Run, talks: ExitStack) -> None:
        self._run = run
        self._database = database
        self._worker = talks.enter_context(Talk(engine, "endure", database.url))
        self._producer = talks.enter_context(Talk(engine, "feed", database.url))
        self._watch = talks.enter_context(psycopg.connect(database.url, autocommit=True))
        self._sampled_at = 0.0
        self._worker.hear()  # it has started

    def go(self, seconds: float) -> tuple[float, float]:
        """Keep the backlog for that long; return when this phase began and ended.

        On a machine that is busy with other things, it lasts until some calls were made.
        """
        began_at = at = time.monotonic()
        is_short = seconds < 5.0
        calls: set[int] = set()
        while at < began_at + seconds or (
            len(calls) < CALLS_SEEN_MIN and at < began_at + seconds + STANDSTILL_SECONDS
        ):
            told = self._worker.hear()
            at = told["at"]
            self._producer.tell(str(told["calls"] + BACKLOG))
            if at < began_at:  # told while nobody listened
                continue
            calls.add(told["calls"])
            if at - self._sampled_at >= 1.0 or is_short:
                self._sampled_at = at
                self._run.samples.append(Sample(at, told["calls"], *self._measure()))
        return began_at, at

    def _measure(self) -> tuple[int, int]:
        row = self._watch.execute(
            "SELECT (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables),"
            "       (SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint)"
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def database_bytes(self) -> int:
        row = self._watch.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return row[0]


@contextmanager
def idle_in_transaction(url: str, _engine: str) -> Iterator[None]:
    """A session that has written something and forgets to commit."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("CREATE TEMPORARY TABLE forgotten AS SELECT 1 AS one")
        yield
        connection.rollback()


@contextmanager
def readers(url: str, table: str, pause_seconds: float = 1.0) -> Iterator[None]:
    """Sessions that read a table again and again, each time in a transaction of ten scans."""
    over = threading.Event()

    def read(connection: psycopg.Connection[Any]) -> None:
        while not over.is_set():
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                for _ in range(10):
                    if not over.wait(pause_seconds):
                        connection.execute(f"SELECT count(*) FROM {table}")  # pyright: ignore[reportArgumentType]

    with ExitStack() as stack:
        threads: list[threading.Thread] = []
        for _ in range(READERS):
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            threads.append(threading.Thread(target=read, args=[connection]))
            threads[-1].start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


@contextmanager
def readers_of_hot_table(url: str, engine: str) -> Iterator[None]:
    with readers(url, HOT_TABLES[engine]):
        yield


@contextmanager
def readers_without_a_pause(url: str, engine: str) -> Iterator[None]:
    with readers(url, HOT_TABLES[engine], pause_seconds=0.0):
        yield


@contextmanager
def readers_of_another_table(url: str, _engine: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS unrelated AS"
            f" SELECT number, repeat('x', 200) AS text FROM generate_series(1, {BACKLOG}) AS number"
        )
    with readers(url, "unrelated"):
        yield


@contextmanager
def four_serve(url: str, _engine: str) -> Iterator[None]:
    settings = {"DATABASE_URL": url, "HTTP_PORT": "0", "EXECUTE": "false", "LOG_FORMAT": "json"}
    environment = os.environ | {f"LEASEHOLD_{name}": value for name, value in settings.items()}
    with ExitStack() as stack:
        for _ in range(SERVERS):
            process = subprocess.Popen(
                [sys.executable, "-m", "leasehold", "serve"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            log = process.stderr
            assert log is not None
            if not any(b"server_started" in line for line in log):
                raise EngineFailed("leasehold serve did not start")
            # A process whose output nobody reads would stop.
            threading.Thread(target=log.read, daemon=True).start()
        yield


def let_wait(url: str, count: int) -> None:
    """Add intents that are due tomorrow, in the form in which the functions would write them."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version,"
            "   priority, due_at, attempt_count, last_modified_at)"
            " SELECT leasehold.new_intent_id(), 'item', 'waiting', 1, 1,"
            "        now() + interval '1 day', 0, now() FROM generate_series(1, %s)",
            [count],
        )
        connection.execute("VACUUM ANALYZE leasehold.outbox_pending")


DISTURBANCES: dict[str, Callable[[str, str], Any]] = {
    "idle in transaction": idle_in_transaction,
    "readers of the hot table": readers_of_hot_table,
    "readers of another table": readers_of_another_table,
    FOUR_SERVE: four_serve,
    SMALL_READERS: readers_without_a_pause,
}


class EnduranceBenchmark:
    """All cells of all engines."""

    def __init__(
        self, server: BenchmarkServer, durations: Durations, engines: list[str], cells: set[str]
    ) -> None:
        self.server = server
        self.cells = cells
        self.durations = durations
        self.engines = engines
        self.rows: list[Row] = []
        self.runs: list[Run] = []
        self.about: dict[str, str] = {}

    def run(self) -> None:
        """Measure the cells of the server that has room for everything."""
        for slots in (16, 64):
            if "slots" in self.cells:
                self.each(partial(self.few_slots, slots=slots))
        if "clean" in self.cells:
            self.each(self.clean)
        for disturbance in DISTURBANCES:
            if disturbance != SMALL_READERS and disturbance.split()[0] in self.cells:
                self.each(partial(self.disturbed, kind=disturbance))
        if "slow" in self.cells:
            self.each(self.slow_gateway)
        if "pickup" in self.cells:
            self.each(self.pickup)

    def run_small(self, server: BenchmarkServer) -> None:
        """Measure the cells of a server with a small cache."""
        self.server = server
        self.each(partial(self.clean, cell=SMALL_CLEAN))
        self.each(partial(self.disturbed, kind=SMALL_READERS))

    def each(self, measure: Callable[[str], None]) -> None:
        """Measure every engine; one that fails is left out from then on, unless it is ours."""
        for name in list(self.engines):
            try:
                measure(name)
            except EngineFailed as failure:
                if name == OURS:
                    raise
                self.engines.remove(name)
                self.about[name] = f"skipped: {failure}"
                progress(f"{name} is skipped: {failure}")

    @contextmanager
    def station(
        self, name: str, cell: str, slots: int, work_seconds: float = WORK_SECONDS
    ) -> Iterator[tuple[Station, Run, Database]]:
        os.environ[SLOTS_NAME] = str(slots)
        os.environ[WORK_SECONDS_NAME] = str(work_seconds)
        run = Run(name, cell)
        with filled_database(self.server, name, 0, 0) as database, ExitStack() as talks:
            self.about[name] = database.engine
            yield Station(database, name, run, talks), run, database
        self.runs.append(run)

    def few_slots(self, name: str, slots: int) -> None:
        with self.station(name, f"clean, {slots} slots", slots) as (station, run, _):
            _, ended_at = station.go(self.durations.few_slots)
        self.add(
            f"clean, {slots} slots: {name}",
            run.rate(ended_at - self.durations.measured, ended_at),
            "jobs/s",
        )

    def slow_gateway(self, name: str) -> None:
        cell = f"calls of {SLOW_SECONDS * 1e3:.0f} ms, {SLOW_SLOTS} slots"
        with self.station(name, cell, SLOW_SLOTS, SLOW_SECONDS) as (station, run, _):
            _, ended_at = station.go(self.durations.few_slots)
        rate = run.rate(ended_at - self.durations.measured, ended_at)
        possible = SLOW_SLOTS / SLOW_SECONDS
        against = f"{possible:.0f} possible"
        self.add(f"{cell}: {name}", rate, "jobs/s", against, ratio(rate, possible))

    def clean(self, name: str, cell: str = "clean") -> None:
        length = self.durations.minute
        with self.station(name, cell, SLOTS_MAX) as (station, run, _):
            station.go(min(5.0, length))  # to warm up
            size_before = station.database_bytes()
            began_at, ended_at = station.go(self.durations.clean)
            size_after = station.database_bytes()
        first = run.rate(began_at, began_at + length)
        last = run.rate(ended_at - length, ended_at)
        of_first = f"{cell}, first minute: {name}"
        self.add(of_first, first, "jobs/s")
        self.add(f"{cell}, last minute: {name}", last, "jobs/s", of_first, ratio(last, first))
        self.add(f"{cell}, WAL per job: {name}", run.wal_per_job(began_at, ended_at), "bytes")
        self.add(f"{cell}, peak of dead rows: {name}", run.peak_dead_rows, "rows")
        jobs = max(run.samples[-1].calls, 1)
        self.add(f"{cell}, bytes kept per job: {name}", (size_after - size_before) / jobs, "bytes")

    def disturbed(self, name: str, kind: str) -> None:
        measured = self.durations.measured
        if kind == FOUR_SERVE and name != OURS:
            return
        with self.station(name, kind, SLOTS_MAX) as (station, run, database):
            if kind == FOUR_SERVE:
                let_wait(database.url, self.durations.waiting)
            station.go(min(5.0, measured))
            _, undisturbed_at = station.go(self.durations.undisturbed)
            with DISTURBANCES[kind](database.url, name):
                run.phases[kind] = time.monotonic()
                disturbed_at, ended_at = station.go(self.durations.disturbed)
        before = run.rate(undisturbed_at - measured, undisturbed_at)
        kept = run.rate(ended_at - measured, ended_at)
        against = f"{kind}, before: {name}"
        self.add(against, before, "jobs/s")
        self.add(f"{kind}, at its end: {name}", kept, "jobs/s", against, ratio(kept, before))
        self.add(f"{kind}, WAL per job: {name}", run.wal_per_job(disturbed_at, ended_at), "bytes")
        self.add(f"{kind}, peak of dead rows: {name}", run.peak_dead_rows, "rows")

    def pickup(self, name: str) -> None:
        os.environ[SLOTS_NAME] = str(SLOTS_MAX)
        os.environ[WORK_SECONDS_NAME] = str(WORK_SECONDS)
        begun: dict[int, float] = {}
        committed: dict[int, float] = {}
        count = int(PICKUPS_PER_SECOND * self.durations.pickup)
        arguments = (str(PICKUPS_PER_SECOND), str(self.durations.pickup))
        with (
            filled_database(self.server, name, 0, 0) as database,
            Talk(name, "serve", database.url) as worker,
        ):

            def hear_calls() -> None:
                while len(begun) < count:
                    told = worker.hear()
                    begun.setdefault(told["number"], told["begun_at"])

            # The worker has started when it makes its first call, of an item that is not measured.
            with Talk(name, "trickle", database.url) as producer:
                producer.tell(str(count))
                producer.hear()
                while worker.hear()["number"] != count:
                    pass
            # Beside the producer: a worker whose output nobody reads would stop.
            hearing = threading.Thread(target=hear_calls)
            hearing.start()
            with Talk(name, "pace", database.url, *arguments) as producer:
                for _ in range(count):
                    told = producer.hear()
                    committed[told["number"]] = told["committed_at"]
            hearing.join()
        # The first tenth does not count.
        waits = sorted(
            max(0.0, begun[one] - committed[one]) * 1e3 for one in range(count // 10, count)
        )
        for percent in (50, 99):
            value = waits[min(len(waits) - 1, len(waits) * percent // 100)]
            self.add(f"pickup at {PICKUPS_PER_SECOND}/s, p{percent}: {name}", value, "ms")

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        against: str | None = None,
        ratio: float | None = None,
    ) -> None:
        self.rows.append(Row(name, value, unit, against, ratio))
        told = "" if ratio is None else f" ({ratio:.3f} of {against})"
        progress(f"{name}: {value:,.1f} {unit}{told}")


def ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def progress(line: str) -> None:
    console.print(f"  {line}", highlight=False)


def write_series(name: str, runs: list[Run]) -> None:
    """Write the rates over time as JSON, and plot them."""
    series = [
        {
            "engine": run.engine,
            "cell": run.cell,
            "rates": [(round(at, 1), round(rate)) for at, rate in run.rates()],
            "dead_rows": [one.dead_rows for one in run.samples],
        }
        for run in runs
    ]
    (OUT / f"{name}-series.json").write_text(json.dumps(series))
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in runs:
        lines.setdefault(run.cell, {})[run.engine] = smoothed(run.rates())
    (OUT / f"{name}.svg").write_text(plot(lines))


def smoothed(points: list[tuple[float, float]], width: int = 5) -> list[tuple[float, float]]:
    """The moving median, so that one checkpoint does not hide the trend."""
    return [
        (at, statistics.median(rate for _, rate in points[max(0, index - width + 1) : index + 1]))
        for index, (at, _) in enumerate(points)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated names")
    parser.add_argument("--cells", default=",".join(CELLS), help="comma-separated names")
    parser.add_argument("--seconds", type=float, help="scale all phases to a clean run this long")
    arguments = parser.parse_args()
    durations = SMOKE if arguments.smoke else scaled(Durations(), arguments.seconds)
    with benchmark_server() as server:
        engines, cells = arguments.engines.split(","), set(arguments.cells.split(","))
        benchmark = EnduranceBenchmark(server, durations, engines, cells)
        benchmark.run()
        header = machine() | {"postgresql": server.version()} | SETTINGS
    if "small" in cells:
        with benchmark_server(SMALL_SETTINGS) as server:
            benchmark.run_small(server)
        header |= {f"{name}, small cache": value for name, value in SMALL_SETTINGS.items()}
    name = "endurance-smoke" if arguments.smoke else "endurance"
    publish(name, header | benchmark.about, benchmark.rows)
    write_series(name, benchmark.runs)


def scaled(durations: Durations, clean_seconds: float | None) -> Durations:
    if clean_seconds is None:
        return durations
    factor = clean_seconds / durations.clean
    lengths = {name: value * factor for name, value in vars(durations).items()}
    return Durations(**(lengths | {"waiting": durations.waiting}))


if __name__ == "__main__":
    main()
