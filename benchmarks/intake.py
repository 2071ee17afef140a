"""Enqueue over HTTP, with wrk at 64 connections: what group commit gains and costs.

The same endpoint on the same server in the same run: as it is, with one database call per request,
and without a database; and, for comparison, a plain FastAPI endpoint without a database. Tokens,
validation and the access log are the same in the first three. `make bench` runs it with the others;
alone: `python -m benchmarks.intake`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import scripts
from benchmarks.report import Row, machine, publish
from benchmarks.server import SETTINGS, benchmark_server
from leasehold.domain.api_token import new_token, token_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.server import BenchmarkServer

    Add = Callable[..., None]

OURS = "leasehold"
WAYS = ("one-by-one", "no-database", "fastapi", OURS)
# Every request has its own key, so each is a row.
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
local count = 0
request = function()
  count = count + 1
  return wrk.format(nil, nil, nil, '{{"target":"bench","payload":{{"to":"+41790000000",' ..
    '"text":"Your order is on its way"}},"idempotency_key":"{prefix}-' .. count .. '"}}')
end
"""


@dataclass(frozen=True)
class Amounts:
    seconds: float = 3.0
    warm_up_seconds: float = 1.0
    rounds: int = 7
    connections: int = 64


FULL = Amounts()
SMOKE = Amounts(seconds=1.0, warm_up_seconds=0.0, rounds=1)


@dataclass(frozen=True)
class Measured:
    per_second: float
    median_ms: float
    p99_ms: float
    answered: int


class IntakeBenchmark:
    """The measurements of the intake; `about` says with what, or why there are none."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, add: Add) -> None:
        self.server = server
        self.amounts = amounts
        self.add = add
        self.about = ""
        self._prefixes = 0
        self._token = new_token()

    def run(self) -> None:
        if shutil.which("wrk") is None:
            self.about = "skipped: wrk is not installed (Debian: apt-get install wrk)"
            return
        self.about = f"wrk, {self.amounts.connections} connections"
        self.server.execute(
            "SELECT leasehold.create_token('benchmark', %s, '{ingest}', NULL, 'benchmark')",
            token_hash(self._token),
        )
        self._at_many()
        self._alone()

    def _at_many(self) -> None:
        """Measure the ways in turn, so that noise affects all of them."""
        found: dict[str, list[Measured]] = {way: [] for way in WAYS}
        for _ in range(self.amounts.rounds):
            for way in WAYS:
                found[way].append(self._measured(way, self.amounts.connections))
        title = f"intake at {self.amounts.connections} connections"
        rates = {way: statistics.median(one.per_second for one in found[way]) for way in WAYS}
        for way in WAYS[:-1]:
            self.add(f"{title}: {way}", rates[way], "requests/s")
        for way in WAYS[:-1]:
            other = f"{title}: {way}"
            self.add(f"{title}: {OURS}", rates[OURS], "requests/s", other, rates[OURS] / rates[way])
        slow = {
            way: statistics.median(one.p99_ms for one in found[way]) for way in ("one-by-one", OURS)
        }
        other = f"{title}, p99: one-by-one"
        self.add(other, slow["one-by-one"], "ms")
        self.add(f"{title}, p99: {OURS}", slow[OURS], "ms", other, slow[OURS] / slow["one-by-one"])

    def _alone(self) -> None:
        """Measure one request at a time, which must not wait for others."""
        found: dict[str, list[float]] = {"one-by-one": [], OURS: []}
        for _ in range(self.amounts.rounds):
            for way, medians in found.items():
                medians.append(self._measured(way, 1).median_ms)
        alone, ours = (statistics.median(found[way]) for way in ("one-by-one", OURS))
        other = "intake of a single request, p50: one-by-one"
        self.add(other, alone, "ms")
        self.add(f"intake of a single request, p50: {OURS}", ours, "ms", other, ours / alone)
        self.add("intake of a single request: added by group commit", max(0, ours - alone), "ms")

    def _measured(self, way: str, connections: int) -> Measured:
        before = self._rows()
        with self._served(way) as url:
            if self.amounts.warm_up_seconds:
                self._wrk(url, connections, self.amounts.warm_up_seconds)
            measured = self._wrk(url, connections, self.amounts.seconds)
        written = self._rows() - before
        if way in {OURS, "one-by-one"} and written < measured.answered:
            raise RuntimeError(f"{way}: {measured.answered} answered, but {written} written")
        return measured

    def _rows(self) -> int:
        return self.server.execute("SELECT count(*) FROM leasehold.intents")[0][0]

    @contextmanager
    def _served(self, way: str) -> Iterator[str]:
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.intake_server", way],
                env=os.environ | {"LEASEHOLD_DATABASE_URL": self.server.url},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                if not url:
                    log.seek(0)
                    raise RuntimeError(f"{way} did not start: {log.read().decode()}")
                yield url
            finally:
                process.kill()
                process.wait()

    def _wrk(self, url: str, connections: int, seconds: float) -> Measured:
        self._prefixes += 1
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(
                _SCRIPT.format(token=self._token, prefix=f"{os.getpid()}-{self._prefixes}")
            )
            script.flush()
            done = subprocess.run(
                [
                    *("wrk", "-t", "1", "-c", str(connections), "-d", f"{max(1, round(seconds))}s"),
                    *("--latency", "-s", script.name, f"{url}/v1/intents"),
                ],
                capture_output=True,
                text=True,
                check=True,
            )
        if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
            raise RuntimeError(done.stdout)
        return Measured(
            per_second=float(_found(r"Requests/sec:\s+([\d.]+)", done.stdout)),
            median_ms=_milliseconds(_found(r"50%\s+([\d.]+\w+)", done.stdout)),
            p99_ms=_milliseconds(_found(r"99%\s+([\d.]+\w+)", done.stdout)),
            answered=int(_found(r"(\d+) requests in", done.stdout)),
        )


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"unexpected output of wrk: {text}")
    return found[1]


def _milliseconds(text: str) -> float:
    number, unit = _found(r"^([\d.]+)", text), _found(r"([a-z]+)$", text)
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a second each, one round")
    arguments = parser.parse_args()
    rows: list[Row] = []

    def add(
        name: str, value: float, unit: str, against: str | None = None, ratio: float | None = None
    ) -> None:
        rows.append(Row(name, value, unit, against, ratio))

    load_before = os.getloadavg()[0]
    with benchmark_server() as server:
        scripts.publish_contracts(server)
        benchmark = IntakeBenchmark(server, SMOKE if arguments.smoke else FULL, add)
        benchmark.run()
        header = machine() | {"postgresql": server.version()} | SETTINGS
    header |= {"load_before": f"{load_before:.1f}", "intake": benchmark.about}
    publish("intake-smoke" if arguments.smoke else "intake", header, rows)


if __name__ == "__main__":
    main()
