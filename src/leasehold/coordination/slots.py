"""The items in flight: each takes a slot from its claim or mark until its result is recorded.

There are never more items in flight than slots. Nobody removes an item while it is being worked
on: to lose an item is to end its trust and cancel its call, and whoever works on it lets it go.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from leasehold.coordination.item import DONE, RECORDING
from leasehold.domain.lease import trust_clock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.coordination.item import Item

    Clock = Callable[[], float]

_target = attrgetter("target")


class Slots:
    """The items that one worker, or one leader in one term, has in flight."""

    def __init__(self, worker_id: str, total: int, clock: Clock = trust_clock) -> None:
        self.worker_id = worker_id
        self.total = total
        self.clock = clock
        self._items: set[Item] = set()
        self._by_target: Counter[str] = Counter()
        self._on_free: list[Callable[[Sequence[Item]], None]] = []
        self._stuck: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def free(self) -> int:
        """How many more items may be taken."""
        return max(0, self.total - len(self._items) - len(self._stuck))

    @property
    def stuck_calls(self) -> int:
        """How many calls were aborted but have not ended."""
        return len(self._stuck)

    def in_flight(self, target: str) -> int:
        """How many items of a target are in flight."""
        return self._by_target[target]

    def on_free(self, callback: Callable[[Sequence[Item]], None]) -> None:
        """Call back with the items whenever some have ended and their slots are free."""
        self._on_free.append(callback)

    def take(self, items: Sequence[Item]) -> None:
        """Give each item a slot."""
        self._items.update(items)
        self._by_target.update(map(_target, items))

    def let_go(self, items: Iterable[Item]) -> None:
        """Free the slots of items that are recorded, given back or dropped."""
        ended: list[Item] = []
        for item in items:
            if item.state is not DONE:
                item.state = DONE
                ended.append(item)
        self._items.difference_update(ended)
        for target, count in Counter(map(_target, ended)).items():
            self._by_target[target] -= count
        for callback in self._on_free:
            callback(ended)

    def all(self) -> list[Item]:
        """Return all items in flight, lost or not."""
        return list(self._items)

    def renewable(self) -> list[Item]:
        """Return the items that a heartbeat renews: not lost, and not so old as to be aborted."""
        now = self.clock()
        return [item for item in self._items if not item.is_lost and now < item.abort_at]

    def overdue(self) -> list[Item]:
        """Return the items to abort: nothing may be worked on for so long."""
        now = self.clock()
        return [
            item
            for item in self._items
            if now >= item.abort_at and item.state < RECORDING and not item.is_lost
        ]

    def keep_slot(self, call: asyncio.Task[None]) -> None:
        """Cancel an aborted call, and keep a slot for it until it ends."""
        call.cancel()
        self._stuck.add(call)
        call.add_done_callback(self._free_slot)

    def lose(self, items: Iterable[Item]) -> int:
        """Lose items: their calls are cancelled. Returns how many were not lost before."""
        lost = [item for item in items if not item.is_lost]
        for item in lost:
            item.lose()
        return len(lost)

    def lose_untrusted(self) -> int:
        """Lose the items that were not renewed in time, as after a stall of this process."""
        now = self.clock()
        return self.lose([item for item in self._items if item.trust.is_over(now)])

    def _free_slot(self, call: asyncio.Task[None]) -> None:
        self._stuck.discard(call)
        for callback in self._on_free:
            callback([])
