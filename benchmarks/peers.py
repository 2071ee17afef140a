"""`make bench`: Leasehold compared with other PostgreSQL queues, on one server in one run.

Every engine has its own database and process, peers have their own virtual environment, and each
runs with its best documented settings, found by trying. An engine that cannot be installed or run
is reported with the reason. How to read the results:

- The engines promise different things. Ours has a unique key per intent, a ledger row per attempt
  and a fence on every write. Absurd and DBOS run workflows of steps; an item here has none.
- Engines that only poll do so every 10 ms here: good for their latency, bad for an idle server.
- A drain lasts from the first call to the last item that the engine's own tables show as finished.
- All processes and the server share the same cores, so an engine that works in the database and one
  that works in Python have different limits.

`--smoke` runs everything with few items, for our engine and the installed peers. `--parts` measures
some parts only.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from benchmarks import cluster, intake, scripts, streams
from benchmarks.peer_engine import BULK
from benchmarks.peer_process import OURS, PEERS, EngineFailed, Talk, ask, filled_database
from benchmarks.peer_workers import one_and_two_workers
from benchmarks.report import Row, machine, publish
from benchmarks.server import SETTINGS, BenchmarkServer, benchmark_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Found = TypeVar("Found")

console = Console(stderr=True)

SQL_BATCH = 100
# An engine that took this long in total is not drained again.
DRAIN_SECONDS_ENOUGH = 30.0


@dataclass(frozen=True)
class Amounts:
    drained: int = 50_000
    single: int = 1_000
    picked_up: int = 70
    remembered: int = 500_000
    through_sandbox: int = 4_000
    rounds: int = 3
    cluster: cluster.Amounts = cluster.FULL
    streams: streams.Amounts = streams.FULL
    intake: intake.Amounts = intake.FULL
    # A slow engine is filled and drained no longer than this, and measured by what it finished.
    seconds_max: float = 30.0


SMOKE = Amounts(
    drained=100,
    single=10,
    picked_up=1,
    remembered=100,
    through_sandbox=20,
    rounds=1,
    cluster=cluster.SMOKE,
    streams=streams.SMOKE,
    intake=intake.SMOKE,
    seconds_max=3.0,
)


@dataclass(frozen=True)
class Pickup:
    """How long one item waited for an idle worker."""

    after_commit_ms: float
    after_enqueue_ms: float


class PeersBenchmark:
    """All measurements of the report; an engine that fails once is left out from then on."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, peers: list[str]) -> None:
        self.server = server
        self.amounts = amounts
        self.engines = [OURS, *peers]
        self.rows: list[Row] = []
        self.about: dict[str, str] = {}

    def run(self, parts: list[str]) -> None:
        for part in parts:
            PARTS[part](self)

    def drain(self) -> None:
        """Drain in turns, so that noise hits all engines; also measures bulk enqueue and CPU."""
        rates: defaultdict[str, list[float]] = defaultdict(list)
        bulk: defaultdict[str, list[float]] = defaultdict(list)
        cpu: defaultdict[str, list[float]] = defaultdict(list)
        spent: defaultdict[str, float] = defaultdict(float)
        for _ in range(self.amounts.rounds):
            for statement in ("raw SQL", "our functions in SQL"):
                rates[statement].append(self.sql_rate(statement))
            for name in self.remaining():
                if spent[name] < DRAIN_SECONDS_ENOUGH:
                    found = self.attempt(name, lambda name=name: self.drain_once(name))
                    if found is not None:
                        rates[name].append(found["rate"])
                        bulk[name].append(found["bulk"])
                        cpu[name].append(found["cpu"])
                        spent[name] += found["seconds"]
        drained = f"drain of {self.amounts.drained:,} no-op items"
        for statement in ("raw SQL", "our functions in SQL"):
            name = f"claim+complete of {SQL_BATCH}, {statement}"
            self.add(name, statistics.median(rates.pop(statement)), "items/s")
            self.against(f"{drained}: {OURS}", rates[OURS], "items/s", name)
        self.compare(drained, rates, "items/s", best=max)
        self.compare(f"enqueue {BULK:,} per call", bulk, "items/s", best=max)
        self.compare("CPU of the worker per item", cpu, "µs", best=min)

    def drain_once(self, name: str) -> dict[str, float]:
        items = self.amounts.drained
        limit = self.amounts.seconds_max
        with filled_database(self.server, name, items, limit) as database:
            self.about[name] = database.engine
            waiting = str(database.items)
            found = ask(name, "drain", database.url, waiting, str(limit), seconds=limit + 60)
        if not found["items"]:
            raise EngineFailed("nothing was drained")
        rate = found["items"] / found["seconds"]
        if found["items"] < items:
            self.about[name] += f"; slow: drained {found['items']:,} items only"
            progress(f"{name}: cut short after {found['items']:,} of {items:,} items")
        progress(f"{name}: drained {rate:,.0f} items/s")
        return {
            "rate": rate,
            "bulk": database.items / database.fill_seconds,
            "cpu": found["cpu_seconds"] / found["items"] * 1e6,
            "seconds": found["seconds"],
        }

    def sql_rate(self, statement: str) -> float:
        """The same with pgbench: how fast the database alone is."""
        make = (
            scripts.bare_claim_and_complete
            if statement == "raw SQL"
            else scripts.claim_and_complete
        )
        scripts.fill(self.server, self.amounts.drained)
        transactions = max(self.amounts.drained // SQL_BATCH, 1)
        rate = SQL_BATCH * self.server.transactions_per_second(
            make(SQL_BATCH), transactions=transactions
        )
        progress(f"{statement}: {rate:,.0f} items/s")
        return rate

    def one_by_one(self) -> None:
        """Pickup by an idle worker, and single enqueues. Also in turns: after a drain the disk is
        still busy, which would slow down whichever engine comes first.
        """
        picked: defaultdict[str, list[Pickup]] = defaultdict(list)
        rates: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(self.amounts.rounds):
            for name in self.remaining():
                found = self.attempt(name, lambda name=name: self.one_by_one_of(name))
                if found is not None:
                    picked[name] += found[0]
                    rates[name].append(found[1])
        self.compare("enqueue one by one", rates, "items/s", best=max)
        for percent in (50, 99):
            for told in ("commit", "enqueue"):
                values = {
                    name: [percentile([getattr(one, f"after_{told}_ms") for one in found], percent)]
                    for name, found in picked.items()
                }
                self.compare(f"pickup, {told} to call, p{percent}", values, "ms", best=min)

    def one_by_one_of(self, name: str) -> tuple[list[Pickup], float]:
        with (
            filled_database(self.server, name, 0, 0) as database,
            Talk(name, "trickle", database.url) as producer,
        ):
            with Talk(name, "serve", database.url) as worker:
                picked = list(self.pickups(producer, worker))
            # No worker runs any more: this measures the producer alone.
            producer.tell(f"burst {self.amounts.single}")
            told = producer.hear(300)
        progress(f"{name}: picked up {len(picked)}, enqueued {self.amounts.single} one by one")
        return picked, self.amounts.single / (told["committed_at"] - told["called_at"])

    def pickups(self, producer: Talk, worker: Talk) -> Iterator[Pickup]:
        """One item at a time, after random pauses; the first three only warm up."""
        for number in range(-3, self.amounts.picked_up):
            producer.tell(str(number))
            told = producer.hear()
            begun_at = worker.hear()["begun_at"]
            if number >= 0:
                # A worker may begin before the producer's commit is acknowledged.
                yield Pickup(
                    after_commit_ms=max(begun_at - told["committed_at"], 0.0) * 1e3,
                    after_enqueue_ms=(begun_at - told["called_at"]) * 1e3,
                )
            time.sleep(random.uniform(0.05, 0.15))

    def memory(self) -> None:
        items = self.amounts.remembered
        with filled_database(self.server, OURS, items, 1200) as database:
            found = ask(OURS, "drain", database.url, str(items), "1200", seconds=1300)
        memory = {part: size / 2**20 for part, size in found["memory"].items()}
        first = f"memory of the worker at 10% of {items:,} items"
        self.add(first, memory["10%"], "MiB")
        for part in ("50%", "100%"):
            name = f"memory of the worker at {part} of {items:,} items"
            self.add(name, memory[part], "MiB", first, memory[part] / memory["10%"])
        self.add(f"drain of {items:,} no-op items", found["items"] / found["seconds"], "items/s")

    def workers(self) -> None:
        with filled_database(self.server, OURS, 0, 0) as database:
            one, two = one_and_two_workers(database.url, self.amounts.through_sandbox)
        name = "gateway of 20 ms: one worker"
        self.add(name, one, "items/s")
        self.add("gateway of 20 ms: two workers", two, "items/s", name, two / one)

    def leaders(self) -> None:
        cluster.ClusterBenchmark(self.server, self.amounts.cluster, self.add).run()

    def streams(self) -> None:
        streams.StreamsBenchmark(self.server, self.amounts.streams, self.add).run()

    def intake(self) -> None:
        benchmark = intake.IntakeBenchmark(self.server, self.amounts.intake, self.add)
        benchmark.run()
        self.about["intake"] = benchmark.about

    def remaining(self) -> list[str]:
        return list(self.engines)

    def attempt(self, name: str, measure: Callable[[], Found]) -> Found | None:
        """Measure; if a peer fails, leave it out and report why. Ours must not fail."""
        try:
            return measure()
        except EngineFailed as failure:
            if name == OURS:
                raise
            self.leave_out(name, str(failure))
            return None

    def leave_out(self, name: str, why: str) -> None:
        self.engines = [one for one in self.engines if one != name]
        self.about[name] = f"skipped: {why}"
        progress(f"{name} is skipped: {why}")

    def compare(
        self,
        measurement: str,
        values: dict[str, list[float]],
        unit: str,
        best: Callable[[Iterator[float]], float],
    ) -> None:
        """Add the value of each peer, and ours with its ratio to the best peer."""
        middle = {name: statistics.median(found) for name, found in values.items()}
        peers = {name: value for name, value in middle.items() if name != OURS}
        for name, value in peers.items():
            self.add(f"{measurement}: {name}", value, unit)
        if not peers:
            self.add(f"{measurement}: {OURS}", middle[OURS], unit)
            return
        winner = best(iter(peers.values()))
        [against, *_] = [name for name, value in peers.items() if value == winner]
        self.against(
            f"{measurement}: {OURS}", values[OURS], unit, f"{measurement}: {against}", winner
        )

    def against(
        self, name: str, values: list[float], unit: str, other: str, value: float | None = None
    ) -> None:
        ours = statistics.median(values)
        base = value if value is not None else self.value_of(other)
        self.add(name, ours, unit, other, ours / base if base else None)

    def value_of(self, name: str) -> float:
        return next(row.value for row in self.rows if row.name == name)

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


PARTS: dict[str, Callable[[PeersBenchmark], None]] = {
    "drain": PeersBenchmark.drain,
    "single": PeersBenchmark.one_by_one,
    "memory": PeersBenchmark.memory,
    "workers": PeersBenchmark.workers,
    "leaders": PeersBenchmark.leaders,
    "streams": PeersBenchmark.streams,
    "intake": PeersBenchmark.intake,
}


def progress(line: str) -> None:
    console.print(f"  {line}", highlight=False)


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few items, one round")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated names")
    parser.add_argument(
        "--parts", type=lambda given: given.split(","), default=list(PARTS), help=", ".join(PARTS)
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"unknown parts {sorted(unknown)}; known are {', '.join(PARTS)}")
    peers = [name for name in arguments.peers.split(",") if name]
    load_before = os.getloadavg()[0]
    with benchmark_server() as server:
        scripts.publish_contracts(server)
        if arguments.smoke:
            # A smoke run only shows that everything works, so make it fast.
            server.execute("ALTER SYSTEM SET fsync = off")
            server.execute("SELECT pg_reload_conf()")
        benchmark = PeersBenchmark(server, SMOKE if arguments.smoke else Amounts(), peers)
        benchmark.run(arguments.parts)
        header = machine() | {"postgresql": server.version()} | SETTINGS
        header |= {"fsync": server.execute("SHOW fsync")[0][0]}
    header |= {"load_before": f"{load_before:.1f}"} | benchmark.about
    publish("peers-smoke" if arguments.smoke else "peers", header, benchmark.rows)


if __name__ == "__main__":
    main()
