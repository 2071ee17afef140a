"""The benchmark of throughput that lasts runs to its end; in full it is `make bench-endurance`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = (
    "clean, 16 slots: leasehold",
    "clean, last minute: leasehold",
    "clean, WAL per job: leasehold",
    "clean, peak of dead rows: leasehold",
    "clean, bytes kept per job: leasehold",
    "idle in transaction, at its end: leasehold",
    "readers of the hot table, at its end: leasehold",
    "readers of another table, at its end: leasehold",
    "four serve beside it, at its end: leasehold",
    "pickup at 300/s, p99: leasehold",
)


@pytest.mark.thorough
@pytest.mark.timeout(300)  # a dozen databases, with two processes each
def test_smoke_run_measures_every_cell_and_plots_it():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance", "--smoke", "--engines", "leasehold"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = ROOT / "benchmarks" / "out"
    report = json.loads((out / "endurance-smoke.json").read_text())
    values = {row["name"]: row["value"] for row in report["rows"]}
    assert set(MEASURED) <= values.keys()
    assert values["clean, last minute: leasehold"] > 0
    series = json.loads((out / "endurance-smoke-series.json").read_text())
    assert all(len(one["rates"]) > 1 for one in series)
    assert (out / "endurance-smoke.svg").read_text().count("<polyline") == len(series)
