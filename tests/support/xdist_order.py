"""The order in which several workers take the files of tests, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

WAITING = ("engine", "faults")
# The last third is short files alone, so that all workers end at about the same time.
_PART = 2 / 3


def among_workers(items: list[pytest.Item]) -> None:
    """Put the files whose tests mostly wait among those whose tests compute."""
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if file.parent.name in WAITING]
    computing = [file for file in files if file.parent.name not in WAITING]
    step = _PART * len(computing) / max(len(waiting), 1)
    places = {file: float(number) for number, file in enumerate(computing)}
    places |= {file: number * step for number, file in enumerate(waiting)}
    items.sort(key=lambda item: places[item.path])
