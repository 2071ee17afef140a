"""The benchmark of throughput that lasts runs to its end; in full it is `make bench-endurance`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.endurance import CELLS

ROOT = Path(__file__).parents[2]
# What is measured, and in which cell.
MEASURED = {
    "clean, 16 slots: leasehold": "slots",
    "clean, last minute: leasehold": "clean",
    "clean, WAL per job: leasehold": "clean",
    "clean, peak of dead rows: leasehold": "clean",
    "clean, bytes kept per job: leasehold": "clean",
    "idle in transaction, at its end: leasehold": "idle",
    "readers of the hot table, at its end: leasehold": "readers",
    "readers of another table, at its end: leasehold": "readers",
    "four serve beside it, at its end: leasehold": "four",
    "calls of 20 ms, 10 slots: leasehold": "slow",
    "pickup at 300/s, p99: leasehold": "pickup",
    "small cache, clean, WAL per job: leasehold": "small",
    "small cache, readers without a pause, at its end: leasehold": "small",
}
# Those that each have a way of measuring of their own; the rest is for the thorough suite.
SHORT = ("clean", "idle", "pickup")


@pytest.mark.timeout(300)  # up to a dozen databases, with two processes each
@pytest.mark.parametrize(
    "cells", [pytest.param(CELLS, marks=pytest.mark.thorough, id="all"), pytest.param(SHORT)]
)
def test_smoke_run_measures_the_cells_and_plots_them(cells):
    command = ["--smoke", "--engines", "leasehold", "--cells", ",".join(cells)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = ROOT / "benchmarks" / "out"
    report = json.loads((out / "endurance-smoke.json").read_text())
    values = {row["name"]: row["value"] for row in report["rows"]}
    assert {name for name, cell in MEASURED.items() if cell in cells} <= values.keys()
    assert values["clean, last minute: leasehold"] > 0
    series = json.loads((out / "endurance-smoke-series.json").read_text())
    assert all(len(one["rates"]) > 1 for one in series)
    assert (out / "endurance-smoke.svg").read_text().count("<polyline") == len(series)
