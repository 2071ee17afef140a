"""The database functions compared with the same row writes in bare SQL, by pgbench, in one run.

The bare side writes the same rows to the same tables with the same indexes and constraints, and
does nothing else: no fence, no verdicts, no retry budget, no idempotency, no hash. `--smoke` runs
everything once with few rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import scripts
from benchmarks.report import Row, machine, publish
from benchmarks.server import SETTINGS, BenchmarkServer, benchmark_server

if TYPE_CHECKING:
    from collections.abc import Callable

console = Console(stderr=True)


class SqlBenchmark:
    """Every measurement of the report; `scale` shrinks the amounts for a smoke run."""

    def __init__(self, server: BenchmarkServer, scale: float, rounds: int) -> None:
        self.server = server
        self.scale = scale
        self.rounds = rounds
        self.rows: list[Row] = []

    def run(self) -> None:
        scripts.publish_contracts(self.server)
        for batch in (None, 1, 100, 1000):
            self.enqueue(batch)
        self.enqueue_keyed(100)
        for batch in (10, 100, 1000):
            for clients in (1, 2, 4):
                self.claim_and_complete(batch, clients)
        self.record(100)
        self.claim_cost_by_backlog()
        self.claim_cost_by_history()
        self.pinned_snapshot()

    def amount(self, full: int) -> int:
        return max(int(full * self.scale), 1)

    def enqueue(self, batch: int | None) -> None:
        size = batch or 1
        name = "enqueue single" if batch is None else f"enqueue batch {batch}"
        transactions = self.amount(max(20_000 // size, 20) if size > 1 else 1_500)
        self.beside(
            name,
            size,
            lambda: self.server.transactions_per_second(
                scripts.enqueue(batch), transactions=transactions
            ),
            lambda: self.server.transactions_per_second(
                scripts.bare_enqueue(size), transactions=transactions
            ),
        )

    def enqueue_keyed(self, batch: int) -> None:
        transactions = self.amount(20_000 // batch)
        self.beside(
            f"enqueue batch {batch}, with keys",
            batch,
            lambda: self.server.transactions_per_second(
                scripts.enqueue_keyed(batch), transactions=transactions
            ),
            lambda: self.server.transactions_per_second(
                scripts.bare_enqueue_keyed(batch), transactions=transactions
            ),
        )

    def claim_and_complete(self, batch: int, clients: int) -> None:
        transactions = self.amount(max(30_000 // batch // clients, 6))
        needed = (transactions + 2) * batch * clients

        def measured(script: scripts.Script) -> float:
            scripts.fill(self.server, needed)
            return self.server.transactions_per_second(
                script, transactions=transactions, clients=clients
            )

        self.beside(
            f"claim+complete batch {batch}, {clients} client{'s' if clients > 1 else ''}",
            batch,
            lambda: measured(scripts.claim_and_complete(batch)),
            lambda: measured(scripts.bare_claim_and_complete(batch)),
        )

    def record(self, batch: int) -> None:
        transactions = self.amount(300)

        def measured(script: scripts.Script) -> float:
            scripts.fill(self.server, (transactions + 2) * batch, scope="cluster")
            return self.server.transactions_per_second(script, transactions=transactions)

        self.beside(
            f"record under a lease, batch {batch}",
            batch,
            lambda: measured(scripts.record(batch)),
            lambda: measured(scripts.bare_record(batch)),
        )

    def claim_cost_by_backlog(self) -> None:
        small, large = self.amount(1_000), self.amount(1_000_000)
        costs: dict[int, float] = {}
        for backlog in (small, large):
            scripts.fill(self.server, backlog)
            costs[backlog] = self.claim_milliseconds()
        self.add(f"claim of 100 at {small:,} pending", costs[small], "ms")
        self.add(
            f"claim of 100 at {large:,} pending",
            costs[large],
            "ms",
            against=f"claim of 100 at {small:,} pending",
            ratio=costs[large] / costs[small],
        )

    def claim_cost_by_history(self) -> None:
        history = self.amount(1_000_000)
        scripts.fill(self.server, self.amount(20_000))
        before = self.cycle_milliseconds()
        scripts.fill_ledger(self.server, history)
        scripts.fill(self.server, self.amount(20_000))
        after = self.cycle_milliseconds()
        self.add("claim+complete of 100, short ledger", before, "ms")
        self.add(
            f"claim+complete of 100 after {history:,} ledger rows",
            after,
            "ms",
            against="claim+complete of 100, short ledger",
            ratio=after / before,
        )

    def pinned_snapshot(self) -> None:
        """A minute of churn while another session keeps an old snapshot open, then without it."""
        seconds = max(60 * self.scale, 2)
        rates: dict[str, float] = {}
        for name in ("free", "pinned"):
            scripts.fill(self.server, self.amount(2_000))
            self.server.execute("VACUUM ANALYZE leasehold.outbox_pending")
            with scripts.snapshot(self.server, held=name == "pinned"):
                rates[name] = self.churn(seconds)
        self.add(f"churn, last fifth of {seconds:.0f} s", rates["free"], "items/s")
        self.add(
            f"churn with a snapshot pinned for {seconds:.0f} s, last fifth",
            rates["pinned"],
            "items/s",
            against=f"churn, last fifth of {seconds:.0f} s",
            ratio=rates["pinned"] / rates["free"],
        )

    def churn(self, seconds: float) -> float:
        """Enqueue, claim and complete in batches of 100; the rate over the last fifth."""
        began = time.monotonic()
        finished: list[float] = []
        while time.monotonic() - began < seconds:
            scripts.one_cycle(self.server)
            finished.append(time.monotonic() - began)
        late = [moment for moment in finished if moment > seconds * 0.8]
        return 100 * len(late) / (seconds * 0.2)

    def claim_milliseconds(self) -> float:
        return 1_000 / self.median(
            lambda: self.server.transactions_per_second(
                scripts.claim_and_give_back(100), transactions=self.amount(200)
            )
        )

    def cycle_milliseconds(self) -> float:
        return 1_000 / self.median(
            lambda: self.server.transactions_per_second(
                scripts.claim_and_complete(100), transactions=self.amount(50)
            )
        )

    def median(self, measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _ in range(self.rounds))

    def beside(
        self, name: str, size: int, ours: Callable[[], float], bare: Callable[[], float]
    ) -> None:
        """Measure both in turns, so that noise affects both, and compare the medians."""
        pairs = [(ours(), bare()) for _ in range(self.rounds)]
        ours_rate = statistics.median(pair[0] for pair in pairs) * size
        bare_rate = statistics.median(pair[1] for pair in pairs) * size
        self.add(f"bare: {name}", bare_rate, "items/s")
        self.add(name, ours_rate, "items/s", against=f"bare: {name}", ratio=ours_rate / bare_rate)

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
        console.print(f"  {name}: {value:,.1f} {unit}{told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few rows, one round")
    arguments = parser.parse_args()
    with benchmark_server() as server:
        benchmark = SqlBenchmark(
            server,
            scale=0.01 if arguments.smoke else 1.0,
            rounds=1 if arguments.smoke else 7,
        )
        header = machine() | {"postgresql": server.version()} | SETTINGS | {"fsync": "on"}
        benchmark.run()
        publish("sql-smoke" if arguments.smoke else "sql", header, benchmark.rows)


if __name__ == "__main__":
    main()
