"""The benchmark against other engines runs from end to end. Its full run is `make bench`.

It takes a few minutes and only serves `make bench`, so it belongs to the thorough suite.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = {"pgqueuer", "procrastinate", "absurd", "awa", "dbos"}
MEASURED = (
    "drain of 100 no-op items: leasehold",
    "enqueue one by one: leasehold",
    "enqueue 1,000 per call: leasehold",
    "CPU of the worker per item: leasehold",
    "pickup, commit to call, p50: leasehold",
    "pickup, commit to call, p99: leasehold",
    "memory of the worker at 100% of 100 items",
    "gateway of 20 ms: two workers",
    "drain of 500 items in 100 streams",
    "the same beside 1 blocked streams",
    "the same in 500 streams",
    "transactions of 1 idle workers, 500 idle streams",
    "stream, SIGKILL, a call in flight: to the successor's first call, p50, in first expiries",
    "stream, SIGKILL, no call in flight: to the successor's first call, p50, in first expiries",
    "stream, SIGTERM, busy stream: to the successor's first call, p50",
)
OVERLAPS = "calls of one stream that overlap"


@pytest.mark.thorough
@pytest.mark.timeout(600)  # some forty processes, one after the other, and more with peers
def test_smoke_run_reports_every_measurement_and_names_every_peer():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / "benchmarks" / "out" / "peers-smoke.json").read_text())
    # Each is there with its version, or with the reason why it was left out.
    assert {"leasehold", "postgresql", "fsync", *PEERS} <= report["header"].keys()
    rows = report["rows"]
    assert all(row.keys() == {"name", "value", "unit", "against", "ratio"} for row in rows)
    # A call may begin before its producer has heard of the commit: that is a latency of 0.
    positive = [row for row in rows if row["unit"] != "ms" and not row["name"].startswith(OVERLAPS)]
    assert all(row["value"] > 0 for row in positive)
    assert [row["value"] for row in rows if row["name"].startswith(OVERLAPS)] == [0]
    values = {row["name"]: row["value"] for row in rows}
    for row in rows:
        assert (row["ratio"] is None) == (row["against"] is None or not values[row["against"]])
        if row["ratio"] is not None:
            assert row["ratio"] == row["value"] / values[row["against"]]
    assert set(MEASURED) <= values.keys()
    skipped = {name for name in PEERS if report["header"][name].startswith("skipped: ")}
    for name in PEERS - skipped:
        assert f"drain of 100 no-op items: {name}" in values
    ordered = {"procrastinate": "locks", "dbos": "partitions"}
    for name in ordered.keys() - skipped:
        in_order = f"drain in 100 {ordered[name]}: {name}_"
        assert any(measured.startswith(in_order) for measured in values)
