"""The slots of an instance, and the items that are in flight.

An item takes a slot from its claim or mark until its call has ended. Then it is in flight until its
result is recorded, but the next call may begin. Results that wait for the database have a bound of
their own: beyond it no slot is given out, so a slow database slows the calls down.

All executors of an instance take their slots from one pool: the one for items, the one for streams,
and one for each group that the instance leads. So there are never more calls at a time than slots.

Nobody removes an item while it is being worked on: to lose an item is to end its trust and cancel
its call, and whoever works on it lets it go.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from leasehold.domain.lease import trust_clock
from leasehold.executor.content_memory import ContentMemory
from leasehold.executor.item import DONE, RECORDING, Slot

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from leasehold.domain.lease import Clock
    from leasehold.executor.item import Item

# An executor that was woken for a slot and does not take one within this time loses its turn.
TURN_SECONDS = 0.1
# How many results may wait to be recorded: this many for each slot, and some for few slots.
RESULTS_PER_SLOT = 2
RESULTS_MIN = 100


class SlotPool:
    """The slots of one instance, which its executors share.

    While all executors find a free slot, each takes what it wants. While one waits for a slot, the
    others leave free slots to it until it has its share: the slots divided by the executors that
    use some or wait. Executors below their shares are served in the order in which they came.
    """

    def __init__(self, total: int, clock: Clock = trust_clock) -> None:
        self.total = total
        self.results_max = max(RESULTS_MIN, RESULTS_PER_SLOT * total)
        self.clock = clock
        self.memory = ContentMemory()
        self._used: Counter[Slots] = Counter()
        self._by_target: Counter[str] = Counter()
        # Of claims that are under way: how many items of each target they may bring.
        self._claims: Counter[str] = Counter()
        self._stuck: set[asyncio.Future[Any]] = set()
        self._lookups: set[asyncio.Future[Any]] = set()
        self._results = 0  # that wait to be recorded
        # Who waits, in this order, and since when there has been a slot to come for.
        self._waiting: dict[Slots, float | None] = {}

    @property
    def used(self) -> int:
        """How many slots are taken or reserved."""
        return self._used.total() + len(self._stuck) + len(self._lookups)

    @property
    def busy(self) -> int:
        """How many slots have a call. A slot that is reserved may stay free."""
        return self._by_target.total() + len(self._stuck) + len(self._lookups)

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

    def in_flight_or_claimed(self, target: str) -> int:
        """Return how many items of a target have a slot, or may get one by a claim under way."""
        return self._by_target[target] + self._claims[target]

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

    def count(self, slots: Slots, targets: Mapping[str, int], results: int = 0) -> None:
        """Count changes of an executor: items in slots, and results that wait to be recorded."""
        self._by_target.update(targets)
        self._results += results
        self._use(slots, sum(targets.values()))
        if results < 0:
            self.wake_waiting()

    @contextmanager
    def reserved(self, slots: Slots, count: int, targets: Mapping[str, int]) -> Generator[None]:
        """Reserve slots during a claim that may bring so many items of these targets."""
        self._use(slots, count)
        self._claims.update(targets)
        try:
            yield
        finally:
            self._claims -= Counter(targets)
            self._use(slots, -count)

    def _use(self, slots: Slots, change: int) -> None:
        self._used[slots] += change
        if change > 0:
            self._waiting.pop(slots, None)
        elif not self._used[slots]:
            del self._used[slots]
        if change < 0:
            self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake everyone who waits, unless no slot is free."""
        if not self._waiting or self.is_full:
            return
        now = self.clock()
        for one, woken_at in list(self._waiting.items()):
            self._waiting[one] = now if woken_at is None else woken_at
            one.wake()

    def keep_slot(self, call: asyncio.Future[Any]) -> None:
        """Keep a slot for a call or a thread that was given up, until it ends."""
        self._lookups.discard(call)
        self._keep(call, self._stuck)

    def count_lookup(self, request: asyncio.Future[Any]) -> None:
        """Count a slot for a lookup that several items share, until it ends."""
        self._keep(request, self._lookups)

    def _keep(self, call: asyncio.Future[Any], calls: set[asyncio.Future[Any]]) -> None:
        if not call.done():
            calls.add(call)
            call.add_done_callback(partial(self._ended, calls))

    def _ended(self, calls: set[asyncio.Future[Any]], call: asyncio.Future[Any]) -> None:
        calls.discard(call)
        self.wake_waiting()

    def _forget_absent(self, present: Slots) -> None:
        now = self.clock()
        for one, woken_at in list(self._waiting.items()):
            if one is not present and woken_at is not None and now - woken_at > TURN_SECONDS:
                del self._waiting[one]


class Slots:
    """What one worker, or one leader in one term, has in flight, and counts in a pool.

    Whether an item has a slot is the item's own state (`Item.slot`).
    """

    def __init__(self, worker_id: str, pool: SlotPool) -> None:
        self.worker_id = worker_id
        self.clock = pool.clock
        self.memory = pool.memory
        self._pool = pool
        self._items: set[Item] = set()
        self._on_free: list[Callable[[Sequence[Item]], None]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def total(self) -> int:
        """How many slots the instance has."""
        return self._pool.total

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
        """Whether each slot of the instance has a call."""
        return self._pool.busy >= self._pool.total

    @property
    def owed(self) -> int:
        """How many of our items must not be followed by others, because executors wait for slots.

        Free slots are not enough for them, and nobody else can take a slot that passes from an item
        to the next of its stream.
        """
        return self._pool.owed_by(self)

    def in_flight(self, target: str) -> int:
        """How many items of a target have a slot in this instance, in any scope."""
        return self._pool.in_flight[target]

    def in_flight_or_claimed(self, target: str) -> int:
        """How many have one, or may get one by a claim under way: a new one leaves room for it."""
        return self._pool.in_flight_or_claimed(target)

    def on_free(self, callback: Callable[[Sequence[Item]], None]) -> None:
        """Call back with the items whenever some have ended; with none if a slot may be free."""
        self._on_free.append(callback)

    def wait_for_one(self) -> None:
        """Wait for a slot: there is work, and none is free."""
        self._pool.wait(self)

    @contextmanager
    def reserved(self, count: int, targets: Mapping[str, int]) -> Generator[None]:
        """Reserve slots for items that are being claimed or marked, until they are taken."""
        with self._pool.reserved(self, count, targets):
            yield

    def take(self, items: Iterable[Item]) -> None:
        """Have items in flight, with their followers. Each takes a slot unless it shares a call."""
        self._pool.count(self, self._enter(items))

    def _enter(self, items: Iterable[Item]) -> Counter[str]:
        new = [one for item in items for one in (item, *item.followers)]
        self.memory.add(new)
        self._items.update(new)
        targets: Counter[str] = Counter()
        for item in new:
            if item.slot is Slot.NONE:
                item.slot = Slot.OWN
                targets[item.target] += 1
        return targets

    def share_call(self, item: Item) -> None:
        """Free the slot of an item, because the call of another item is its call too."""
        if item.has_slot:
            item.slot = Slot.SHARED
            self._pool.count(self, {item.target: -1})
            self.wake()

    def end_call(self, item: Item) -> None:
        """Free the slot of an item whose call has ended; its result waits to be recorded."""
        if item.has_slot:
            item.slot = Slot.RETURNED
            self._pool.count(self, {item.target: -1}, results=1)
            self.wake()

    def let_go(self, items: Iterable[Item], followed_by: Iterable[Item] = ()) -> None:
        """Forget items that are recorded, given back or dropped, and free the slots they have.

        The next items of their streams take these slots, which are not free in between.
        """
        ended = [item for item in items if item.state is not DONE]
        freed = Counter(item.target for item in ended if item.has_slot)
        results = sum(item.slot is Slot.RETURNED for item in ended)
        self.memory.remove(item for item in ended if item.slot is not Slot.NONE)
        self._items.difference_update(ended)
        for item in ended:
            item.end()
        changes = self._enter(followed_by)
        changes.subtract(freed)
        self._pool.count(self, changes, -results)
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
        """Cancel a call that was given up, and keep a slot for it until it ends."""
        call.cancel()
        self._pool.keep_slot(call)

    def count_lookup(self, request: asyncio.Task[None]) -> None:
        """Use a slot for a lookup that several items share, until it ends."""
        self._pool.count_lookup(request)

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
            if item.task is not None:
                self._pool.keep_slot(item.task)
        self.let_go(self.all())
