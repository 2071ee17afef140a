"""The common result format of all benchmarks: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Row:
    """One measurement; `ratio` is `value` divided by the value of the row `against`."""

    name: str
    value: float
    unit: str
    against: str | None = None
    ratio: float | None = None


def machine() -> dict[str, str]:
    """What a reader must know about the machine."""
    return {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
    }


def publish(name: str, header: dict[str, str], rows: list[Row]) -> Path:
    """Print the table and write `out/<name>.json`; return its path."""
    console = Console()
    console.width = max(console.width, 132)  # a report is read in files as often as on screens
    console.print(f"[bold]{name}[/bold]  " + "  ".join(f"{k}={v}" for k, v in header.items()))
    table = Table("measurement", "value", "unit", "against", "ratio")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.add_row(row.name, f"{row.value:,.1f}", row.unit, row.against or "", ratio)
    console.print(table)
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps({"header": header, "rows": [asdict(row) for row in rows]}, indent=2))
    console.print(f"written to {path.relative_to(Path(__file__).parent.parent)}")
    return path
