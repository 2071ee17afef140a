"""Orders the test files for pytest-xdist, so that all workers finish at about the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

WAITING = ("engine", "faults")
# The last third of the run has only short files.
_PART = 2 / 3


def spread_waiting_files(items: list[pytest.Item]) -> None:
    """Spread files whose tests mostly wait among files whose tests compute."""
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if file.parent.name in WAITING]
    computing = [file for file in files if file.parent.name not in WAITING]
    step = _PART * len(computing) / max(len(waiting), 1)
    places = {file: float(number) for number, file in enumerate(computing)}
    places |= {file: number * step for number, file in enumerate(waiting)}
    items.sort(key=lambda item: places[item.path])
