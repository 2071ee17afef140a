"""The repeater writes again what the database has certainly not written.

- It passed over items because somebody else has locked their rows: they are written again together,
  with a growing pause. Those whose rows are free by then are written.
- It rolled the whole write back, for example because a lease or a partition was locked for too
  long, or in a deadlock. One lock must not hold up all others, so the items are halved before they
  are written again, down to single items or single streams; each of these is repeated with a
  growing pause.

The write itself drops what is not trusted any more, so nothing is repeated for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.domain.errors import is_rolled_back
from leasehold.executor.item import DONE
from leasehold.executor.log_budget import LogBudget
from leasehold.observe.logs import get_logger
from leasehold.service.backoff import Backoff
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasehold.domain.lease import Clock
    from leasehold.executor.item import Item

    # Returns the items that it passed over, because somebody else has locked their rows.
    Write = Callable[[Sequence[Item]], Awaitable[Sequence[Item]]]

FIRST_SECONDS = 0.05
SECONDS_MAX = 2.0
_IDLE = Pause(60.0)

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Part:
    """Items to write together, and when."""

    write: Write
    units: Sequence[Sequence[Item]]
    due_at: float
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_SECONDS, SECONDS_MAX))

    @property
    def items(self) -> list[Item]:
        return [item for unit in self.units for item in unit if item.state is not DONE]


class Repeater:
    """The service that repeats writes."""

    name = "repeater"

    def __init__(self, clock: Clock) -> None:
        self.wake = asyncio.Event()
        self._clock = clock
        self._parts: list[_Part] = []
        self._rollbacks = LogBudget(_LOG, "write_rolled_back")
        self._locks = LogBudget(_LOG, "rows_locked")

    def add(self, write: Write, items: Sequence[Item], error: Exception) -> None:
        """Repeat a write that was rolled back. The items stay in flight until it has ended them."""
        self._repeat(_Part(write, _units(items), self._clock()), error)
        self.wake.set()

    def add_locked(self, write: Write, items: Sequence[Item]) -> None:
        """Write items later that were passed over. They stay in flight until then.

        The first time is no news: each renewal of claims locks their rows for a moment.
        """
        if items:
            self._postpone(_Part(write, _units(items), 0.0))
            self.wake.set()

    async def step(self) -> Pause:
        """Write the part that is due first."""
        part = min(self._parts, key=lambda one: one.due_at, default=None)
        if part is None:
            return _IDLE
        wait_seconds = part.due_at - self._clock()
        if wait_seconds > 0:
            return Pause(wait_seconds)
        self._parts.remove(part)
        try:
            locked = await part.write(part.items)
        except Exception as error:
            if not is_rolled_back(error):
                raise
            self._repeat(part, error)
        else:
            if locked:
                self._locks.warn(items=len(locked), **locked[0].log_fields())
                part.units = _units(locked)
                self._postpone(part)
        return AGAIN

    def _repeat(self, part: _Part, error: Exception) -> None:
        """Halve what was rolled back. What cannot be halved waits longer each time."""
        items = part.items
        if not items:
            return
        self._rollbacks.warn(items=len(items), error=str(error), **items[0].log_fields())
        now, middle = self._clock(), len(part.units) // 2
        if middle:
            for units in (part.units[:middle], part.units[middle:]):
                self._parts.append(_Part(part.write, units, now))
        else:
            self._postpone(part)

    def _postpone(self, part: _Part) -> None:
        part.due_at = self._clock() + part.backoff.next_seconds()
        self._parts.append(part)


def _units(items: Sequence[Item]) -> list[list[Item]]:
    """Return what must be written together: the items of one stream, else each item by itself."""
    units: list[list[Item]] = []
    for item in items:
        is_same_stream = item.fence.keeps_slot and units and units[-1][0].trust is item.trust
        if is_same_stream:
            units[-1].append(item)
        else:
            units.append([item])
    return units
