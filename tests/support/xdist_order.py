"""Distributes the tests over pytest-xdist's workers, so that all finish at about the same time.

A worker gets whole files, because their tests share fixtures. Tests that wait, or that take many
seconds each, share nothing, so they are distributed one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest

WAITING = ("tests/engine/", "tests/faults/")
LONG = ("tests/database/test_state_machine.py",)
# The last third of the run has only short files.
_PART = 2 / 3


class Scheduling(LoadFileScheduling):
    """Hands out files, and single tests of the files that are distributed one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return nodeid if file in LONG or _waits(nodeid) else file


def order(items: list[pytest.Item]) -> None:
    """Put long tests first, and spread tests that mostly wait among files that compute."""
    first = [item for item in items if _file(item.nodeid) in LONG]
    waiting = [item for item in items if _waits(item.nodeid)]
    placed = {*first, *waiting}
    computing = [item for item in items if item not in placed]
    # The unit tests are the shortest.
    computing.sort(key=lambda item: _file(item.nodeid).startswith("tests/unit/"))
    starts: dict[str, float] = {}
    for number, item in enumerate(computing):
        starts.setdefault(_file(item.nodeid), number)
    step = _PART * len(computing) / max(len(waiting), 1)
    places = dict.fromkeys(first, -1.0)
    places |= {item: starts[_file(item.nodeid)] for item in computing}
    places |= {item: number * step for number, item in enumerate(waiting)}
    items.sort(key=places.__getitem__)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _waits(nodeid: str) -> bool:
    return _file(nodeid).startswith(WAITING)
