"""The demo's own database: created for each run; and what the view shows of it.

Each run starts empty, because the gateway of an earlier run and its effects are gone.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.store.database import server_at

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from leasehold.demo.traffic import EffectCount
    from leasehold.store.demo import InstanceRow, LeaseRow, LedgerRow, UnfinishedRow

PREFIX = "leasehold_demo_"


@contextmanager
def demo_database(server_url: str, folder: Path) -> Generator[tuple[str, Path]]:
    """Create a database and a log folder, and yield both; remove those of earlier runs."""
    with server_at(server_url).scratch_database(PREFIX) as created:
        for old in created.dropped:
            shutil.rmtree(folder / old, ignore_errors=True)
        logs = folder / created.name
        logs.mkdir(mode=0o700)
        yield created.url, logs


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the view shows at one time."""

    elapsed_seconds: float
    enqueued: Mapping[str, int]
    instances: Sequence[InstanceRow]
    leases: Sequence[LeaseRow]
    unfinished: Mapping[str, UnfinishedRow]
    finished_per_second: float
    ledger: Sequence[LedgerRow]
    effects: Mapping[str, EffectCount]
