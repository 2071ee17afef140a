"""The benchmark of throughput that lasts runs to its end; in full it is `make bench-endurance`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.endurance import CELLS

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
    "calls of 20 ms, 10 slots: leasehold",
    "pickup at 300/s, p99: leasehold",
)
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
    words = tuple("calls" if one == "slow" else one for one in cells if one != "slots")
    assert {one for one in MEASURED if one.startswith(words)} <= values.keys()
    assert values["clean, last minute: leasehold"] > 0
    series = json.loads((out / "endurance-smoke-series.json").read_text())
    assert all(len(one["rates"]) > 1 for one in series)
    assert (out / "endurance-smoke.svg").read_text().count("<polyline") == len(series)
