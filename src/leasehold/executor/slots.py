"""The slots of an instance, and the items that are in them.

An item takes a slot from its claim or mark until its call has ended. Then it is in flight until its
result is recorded, but the next call may begin. Results that wait for the database have a bound of
their own: beyond it no slot is given out, so a slow database slows the calls down.

All executors of an instance, the one for items and one for each group that it leads, take their
slots from one pool, so there are never more calls at a time than slots.

Nobody removes an item while it is being worked on: to lose an item is to end its trust and cancel
its call, and whoever works on it lets it go.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from leasehold.domain.lease import trust_clock
from leasehold.executor.content_memory import ContentMemory
from leasehold.executor.item import DONE, RECORDING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from leasehold.domain.lease import Clock
    from leasehold.executor.item import Item

# Whoever waits for a slot and does not come for it within this time after it was woken, waits no
# more: another executor may use the slot.
TURN_SECONDS = 0.1
# How many results may wait to be recorded: this many for each slot, and some for few slots.
RESULTS_PER_SLOT = 2
RESULTS_MIN = 100

_target = attrgetter("target")


class SlotPool:
    """The slots of one instance, which its executors share.

    Free slots are for everyone. While an executor waits for a slot, the others leave it the slots
    that it lacks to its share, an equal part for each executor that uses slots or waits; below
    their shares, executors are served in the order in which they came.
    """

    def __init__(self, total: int, clock: Clock = trust_clock) -> None:
        self.total = total
        self.results_max = max(RESULTS_MIN, RESULTS_PER_SLOT * total)
        self.clock = clock
        self.memory = ContentMemory()
        self._used: Counter[Slots] = Counter()
        self._by_target: Counter[str] = Counter()
        self._stuck: set[asyncio.Future[Any]] = set()
        self._results = 0  # that wait to be recorded
        # Who waits, in this order, and since when there has been a slot to come for.
        self._waiting: dict[Slots, float | None] = {}

    @property
    def used(self) -> int:
        """How many slots are taken or reserved."""
        return self._used.total() + len(self._stuck)

    @property
    def is_full(self) -> bool:
        """Whether no call may begin: all slots are used, or too much is in memory."""
        return self.used >= self.total or self._results >= self.results_max or self.memory.is_full

    @property
    def stuck_calls(self) -> int:
        """How many calls were given up but have not ended. Each keeps a slot."""
        return len(self._stuck)

    @property
    def in_flight(self) -> Mapping[str, int]:
        """How many items of each target have a slot, for all targets that ever had one."""
        return self._by_target

    def share_of(self, slots: Slots) -> int:
        """Return how many slots are left to an executor even if all others want more."""
        return max(1, self.total // len({slots, *self._used, *self._waiting}))

    def free_for(self, slots: Slots) -> int:
        """Return how many slots an executor may take now."""
        free = 0 if self.is_full else self.total - self.used
        if not free or not self._waiting:
            return free
        self._forget_absent(slots)
        share = self.share_of(slots)
        owed = owed_to_earlier = 0
        for one in self._waiting:
            if one is slots:
                owed_to_earlier = owed
            else:
                owed += max(0, share - self._used[one])
        if slots not in self._waiting:
            owed_to_earlier = owed
        within_share = min(share - self._used[slots], free - owed_to_earlier)
        return max(0, within_share, free - owed)

    def owed_by(self, slots: Slots) -> int:
        """Return how many slots an executor has beyond its share while others lack theirs."""
        if not self._waiting:
            return 0
        self._forget_absent(slots)
        share = self.share_of(slots)
        lacking = sum(max(0, share - self._used[one]) for one in self._waiting if one is not slots)
        lacking -= max(0, self.total - self.used)
        return max(0, min(lacking, self._used[slots] - share))

    def wait(self, slots: Slots) -> None:
        """Wake an executor when there may be a slot for it."""
        self._waiting[slots] = None

    def occupy(self, slots: Slots, count: int) -> None:
        """Count slots as used by an executor."""
        self._waiting.pop(slots, None)
        if count:
            self._used[slots] += count

    def vacate(self, slots: Slots, count: int) -> None:
        """Count slots as free again, and wake who waits for one."""
        self._used[slots] -= count
        if not self._used[slots]:
            del self._used[slots]
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake everyone who waits, unless no slot is free."""
        if not self._waiting or self.is_full:
            return
        now = self.clock()
        for one, woken_at in list(self._waiting.items()):
            self._waiting[one] = now if woken_at is None else woken_at
            one.wake()

    def end_call(self, slots: Slots, target: str) -> None:
        """Count a slot as free again, and a result that waits to be recorded."""
        self._by_target[target] -= 1
        self._results += 1
        self.vacate(slots, 1)

    def end_results(self, count: int) -> None:
        """Count results as not waiting any more."""
        self._results -= count
        self.wake_waiting()

    def count_items(self, targets: Mapping[str, int], sign: int) -> None:
        """Count the items of targets as in slots (1), or not any more (-1)."""
        for target, count in targets.items():
            self._by_target[target] += sign * count

    def keep_slot(self, call: asyncio.Future[Any]) -> None:
        """Keep a slot for a call or a thread that was given up, until it ends."""
        if not call.done():
            self._stuck.add(call)
            call.add_done_callback(self._free_slot)

    def _free_slot(self, call: asyncio.Future[Any]) -> None:
        self._stuck.discard(call)
        self.wake_waiting()

    def _forget_absent(self, asking: Slots) -> None:
        now = self.clock()
        for one, woken_at in list(self._waiting.items()):
            if one is not asking and woken_at is not None and now - woken_at > TURN_SECONDS:
                del self._waiting[one]


class Slots:
    """The items that one worker, or one leader in one term, has in flight, in slots of a pool."""

    def __init__(self, worker_id: str, pool: SlotPool) -> None:
        self.worker_id = worker_id
        self.clock = pool.clock
        self.memory = pool.memory
        self._pool = pool
        self._items: set[Item] = set()
        self._in_slots: set[Item] = set()  # the others wait to be recorded, or are followers
        self._followers: set[Item] = set()
        self._by_target: Counter[str] = Counter()
        self._on_free: list[Callable[[Sequence[Item]], None]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def total(self) -> int:
        """How many slots the instance has."""
        return self._pool.total

    @property
    def results_max(self) -> int:
        """How many results may wait to be recorded before no slot is given out."""
        return self._pool.results_max

    @property
    def share(self) -> int:
        """How many slots we have even if all other executors want more."""
        return self._pool.share_of(self)

    @property
    def free(self) -> int:
        """How many more items may be taken."""
        return self._pool.free_for(self)

    @property
    def are_busy(self) -> bool:
        """Whether each slot of the instance has a call. A slot that is reserved may stay free."""
        return sum(self._pool.in_flight.values()) + self._pool.stuck_calls >= self._pool.total

    @property
    def owed(self) -> int:
        """How many slots we should leave to others that wait. Free slots are not enough for them.

        For executors whose next item takes the slot of the last one: nobody else can come for it.
        """
        return self._pool.owed_by(self)

    def in_flight(self, target: str) -> int:
        """How many items of a target have a slot here."""
        return self._by_target[target]

    def on_free(self, callback: Callable[[Sequence[Item]], None]) -> None:
        """Call back with the items whenever some have ended; with none if a slot may be free."""
        self._on_free.append(callback)

    def wait_for_one(self) -> None:
        """Wait for a slot: there is work, and none is free."""
        self._pool.wait(self)

    @contextmanager
    def reserved(self, count: int) -> Generator[None]:
        """Reserve slots for items that are being claimed or marked, until they are taken."""
        self._pool.occupy(self, count)
        try:
            yield
        finally:
            self._pool.vacate(self, count)

    def take(self, items: Sequence[Item]) -> None:
        """Give each item a slot."""
        targets = Counter(map(_target, items))
        self.memory.add(items, known=self._items)
        self._items.update(items)
        self._in_slots.update(items)
        self._by_target.update(targets)
        self._pool.occupy(self, len(items))
        self._pool.count_items(targets, 1)

    def join(self, followers: Collection[Item]) -> None:
        """Have items in flight that need no slot: the call of another item is theirs too."""
        self.memory.add(followers, known=self._items)
        self._items.update(followers)
        self._followers.update(followers)

    def has_slot(self, item: Item) -> bool:
        """Say whether an item has a slot of its own."""
        return item in self._in_slots

    def share_call(self, item: Item) -> None:
        """Free the slot of an item, because the call of another item is its call too."""
        if item in self._in_slots:
            self._followers.add(item)
            self._vacate([item])
            self.wake()

    def occupy(self, call: asyncio.Future[Any]) -> None:
        """Use a slot for a call that several items share, until it ends."""
        self._pool.keep_slot(call)

    def end_call(self, item: Item) -> None:
        """Free the slot of an item whose call has ended; its result waits to be recorded."""
        if item in self._in_slots:
            self._in_slots.discard(item)
            self._by_target[item.target] -= 1
            self._pool.end_call(self, item.target)
            self.wake()

    def _vacate(self, items: Collection[Item]) -> None:
        targets = Counter(map(_target, items))
        self._in_slots.difference_update(items)
        self._by_target.subtract(targets)
        self._pool.count_items(targets, -1)
        self._pool.vacate(self, len(items))

    def let_go(self, items: Iterable[Item]) -> None:
        """Forget items that are recorded, given back or dropped, and free the slots they have."""
        ended: list[Item] = []
        for item in items:
            if item.state is not DONE:
                item.state = DONE
                ended.append(item)
        self.memory.remove(self._items.intersection(ended))
        self._items.difference_update(ended)
        in_slots = self._in_slots.intersection(ended)
        followers = self._followers.intersection(ended)
        self._followers -= followers
        self._pool.end_results(len(ended) - len(in_slots) - len(followers))
        self._vacate(in_slots)
        for callback in self._on_free:
            callback(ended)

    def wake(self) -> None:
        """Say that a slot may be free."""
        for callback in self._on_free:
            callback([])

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
        late = [item for item in self._items if now >= item.abort_at and not item.is_lost]
        return [item for item in late if item.state < RECORDING]

    def keep_slot(self, call: asyncio.Task[None]) -> None:
        """Cancel an aborted call, and keep a slot for it until it ends."""
        call.cancel()
        self._pool.keep_slot(call)

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

    def close(self) -> None:
        """Let everything go. A call that has not ended, though cancelled, keeps its slot."""
        for item in self._items:
            if item.call is not None:
                self._pool.keep_slot(item.call)
        self.let_go(self.all())
