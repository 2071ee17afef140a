"""The SQL benchmark runs from end to end; its full run is `make bench-sql`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_smoke_run_reports_every_measurement_in_the_common_shape():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sql", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((ROOT / "benchmarks" / "out" / "sql-smoke.json").read_text())
    assert {"python", "cores", "postgresql", "fsync"} <= report["header"].keys()
    rows = {row["name"]: row for row in report["rows"]}
    assert all(row.keys() == {"name", "value", "unit", "against", "ratio"} for row in rows.values())
    assert all(row["value"] > 0 for row in rows.values())
    for row in rows.values():
        if row["against"] is not None:
            assert row["ratio"] == row["value"] / rows[row["against"]]["value"]
    compared = [row["name"] for row in rows.values() if row["against"]]
    for what in ("enqueue single", "enqueue batch 1000", "claim+complete batch 10, 1 client"):
        assert what in compared
    assert any(name.startswith("record under a lease") for name in compared)
    assert any("pinned" in name for name in compared)
