"""The completer writes results to the ledger: many in one call, within a few milliseconds.

What follows a write of results:

- The database recorded them: their items are let go. In a stream, the answer brings the next head,
  which takes the slot of the last one and is started then.
- It passed over results whose rows somebody else has locked, or certainly rolled the write back:
  these results are written again while the lease is trusted (`repeater.py`).
- It refused the batch because of one result, and wrote nothing: the results are sent one by one. A
  result that is refused by itself is reported, and not sent again.
- It did not answer: nobody knows what it did. The results are dropped, and repair ends the items.

Items that are given back have no result. That write is repeated after any failure while the lease
is trusted: nothing was sent for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from leasehold.domain.errors import (
    DatabaseUnavailable,
    LeaseLost,
    TerminalGuardHit,
    is_rolled_back,
)
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.executor.fences import GIVEN_BACK_MAX, Written, by_fence
from leasehold.executor.repeater import Repeater
from leasehold.executor.result_reports import ResultReports
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.domain.outcome import Outcome
    from leasehold.executor.faults import Faults
    from leasehold.executor.fences import Fence
    from leasehold.executor.item import Item
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.repeater import Write
    from leasehold.executor.slots import Slots
    from leasehold.observe.metrics import Metrics

BATCH_MAX = 500  # so that the next calls are made while the rest is written
# How long the first result waits for others, so that calls that end together share one write.
LINGER_SECONDS = 0.001
_IDLE = Pause(60.0)


class Completer:
    """The service that records results and gives items back."""

    name = "completer"

    def __init__(
        self,
        slots: Slots,
        metrics: Metrics,
        *,
        on_error: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
        observer: ObserverThread | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        self.repeater = Repeater(slots.clock)
        self._slots = slots
        self._metrics = metrics
        self._on_error = on_error
        self._faults = faults
        self._reports = ResultReports(slots, metrics, observer)
        self._finished: list[Item] = []
        self._given_back: list[tuple[Item, float]] = []
        self._first_at = 0.0

    def complete(self, item: Item, outcome: Outcome, elapsed_seconds: float | None = None) -> None:
        """Have a result recorded. The item's slot is free at once, unless its fence keeps it."""
        if not self._finished:
            self._first_at = self._slots.clock()
        if item.finish(outcome, elapsed_seconds):
            self._finished.append(item)
            self._end_call(item)

    def give_back(self, item: Item, delay_seconds: float) -> None:
        """Return an item without an attempt: due again after the delay, nothing on the ledger."""
        if item.give_back(self._slots.clock() + delay_seconds):
            self._given_back.append((item, delay_seconds))
            self._end_call(item)

    def put_back(self, item: Item) -> None:
        """Return an item of a batch that was not sent, together with the results of the others."""
        if item.put_back():
            self._finished.append(item)
            self.wake.set()

    def _end_call(self, item: Item) -> None:
        if not item.fence.keeps_slot:
            self._slots.end_call(item)
        self.wake.set()

    async def step(self) -> Pause:
        """Write the results that are there, unless more are about to come."""
        if self._finished:
            waited = self._slots.clock() - self._first_at
            is_more_to_come = len(self._finished) < len(self._slots)
            if is_more_to_come and waited < LINGER_SECONDS and len(self._finished) < BATCH_MAX:
                return Pause(LINGER_SECONDS - waited)
            await self._write(self._next_batch())
        # After the results: what a stream gives back is written together with its results.
        if self._given_back:
            await self._release()
        return AGAIN if self._finished or self._given_back else _IDLE

    def _next_batch(self) -> Sequence[Item]:
        """Take the next results to write. Those of one stream stay together.

        The first write brings the next heads of the stream.
        """
        end, finished = BATCH_MAX, self._finished
        while (
            end < len(finished)
            and finished[end].fence.keeps_slot
            and finished[end].trust is finished[end - 1].trust
        ):
            end += 1
        self._finished = finished[end:]
        return finished[:end]

    async def _write(self, batch: Sequence[Item]) -> None:
        """Write the results of each fence. A fence that fails does not hold up the others."""
        writes = ((partial(self._settle, fence), items) for fence, items in by_fence(batch).items())
        await self._try_each(writes)

    async def _try_each(self, writes: Iterable[tuple[Write, Sequence[Item]]]) -> None:
        """Try each write, and repeat later what was not written; raise the first other error."""
        failures: list[Exception] = []
        for write, items in writes:
            try:
                locked = await write(items)
            except Exception as error:  # noqa: BLE001 (raised below, after the other writes)
                if is_rolled_back(error):
                    self.repeater.add(write, items, error)
                else:
                    failures.append(error)
            else:
                self.repeater.add_locked(write, locked)
        if failures:
            raise failures[0]

    async def _settle(self, fence: Fence, items: Sequence[Item]) -> Sequence[Item]:
        """Write results and let their items go. They stay if the write was rolled back.

        Return the items that stay because somebody else has locked their rows.
        """
        try:
            locked = await self._write_under(fence, items)
        except Exception as error:
            if not is_rolled_back(error):
                self._on_error(error)
                self._slots.let_go(items)
            raise
        self._slots.let_go(_without(items, locked))
        return locked

    async def _write_under(self, fence: Fence, items: Sequence[Item]) -> Sequence[Item]:
        now = self._slots.clock()
        trusted: list[Item] = []
        for item in items:
            if item.trust.is_over(now):
                self._discard(item)
            else:
                trusted.append(item)
        if not trusted:
            return []
        try:
            return await self._record(fence, trusted)
        except LeaseLost as error:
            for item in trusted:
                self._reports.drop(item, RecordVerdict.LEASE_LOST)
            self._on_error(error)
            return []

    async def _record(self, fence: Fence, batch: Sequence[Item]) -> Sequence[Item]:
        items = [item for item in batch if item.outcome is not None]  # else: put back
        if not items:
            return []
        try:
            written = await self._send(fence, items)
        except Exception as error:
            if not fence.is_about_one_result(error):
                raise
            return await self._record_one_by_one(fence, items, error)
        locked = written.locked(batch)
        items = _without(items, locked)
        for item in items:
            item.is_unsettled = False
        self._end(items, written)
        await self._faults.reach(FaultPoint.AFTER_COMPLETE)
        self._reports.report(items, written.recorded)
        return locked

    def _end(self, items: Iterable[Item], written: Written) -> None:
        """Let items go, and start what follows them in their streams, in the same slots."""
        self._slots.let_go(items, followed_by=written.next_heads)
        written.start(written.next_heads)

    async def _send(self, fence: Fence, items: Sequence[Item]) -> Written:
        if self._faults is NO_FAULTS:
            # Without a task: it would run only after all calls that are about to begin, and the
            # database would sit idle meanwhile.
            return await fence.record(items)
        written, _ = await asyncio.gather(
            fence.record(items), self._faults.reach(FaultPoint.DURING_COMPLETE)
        )
        return written

    async def _record_one_by_one(
        self, fence: Fence, items: Sequence[Item], error: Exception
    ) -> Sequence[Item]:
        """Nothing was written: do not let the other results suffer for the one that is refused."""
        if len(items) > 1:
            all_locked: list[Item] = []
            for item in items:
                locked = await self._record(fence, [item])
                self._slots.let_go(_without([item], locked))  # a later one may be rolled back
                all_locked += locked
            return all_locked
        event = "result_refused"
        if isinstance(error, TerminalGuardHit):
            event = "terminal_guard_hit"
            self._metrics.terminal_guard_hit()
        self._reports.log(logging.ERROR, event, items[0], error=str(error))
        # Else a leader would read the row again and make the call again. Claims and streams expire.
        self._on_error(error)
        return []

    def _discard(self, item: Item) -> None:
        """Report a result that came after its lease was trusted. It is not sent.

        Whoever holds the lease gives it up: a leader its term, a holder its stream. A claim is left
        to the reaper.
        """
        self._slots.let_go([item])
        self._metrics.late_result()
        self._reports.log(logging.WARNING, "late_result_discarded", item)
        self._on_error(LeaseLost("trust ended before the result was written"))

    async def _release(self) -> None:
        given_back = self._given_back[:GIVEN_BACK_MAX]
        self._given_back = self._given_back[GIVEN_BACK_MAX:]
        groups: defaultdict[tuple[Fence, float], list[Item]] = defaultdict(list)
        for item, delay_seconds in given_back:
            groups[item.fence, delay_seconds].append(item)
        await self._try_each(
            (partial(self._give_back, fence, delay_seconds), items[at : at + fence.given_back_max])
            for (fence, delay_seconds), items in groups.items()
            for at in range(0, len(items), fence.given_back_max)
        )

    async def _give_back(
        self, fence: Fence, delay_seconds: float, items: Sequence[Item]
    ) -> Sequence[Item]:
        """Return items to the database and let them go. Repeat it later if that may help."""
        stay: Sequence[Item] = ()
        written = Written()
        try:
            written = await fence.give_back(items, delay_seconds)
            if written.lost:
                self._metrics.lease_lost(written.lost)
            stay = written.locked(items)
        except DatabaseUnavailable as error:
            now = self._slots.clock()
            stay = [item for item in items if not item.trust.is_over(now)]
            if not is_rolled_back(error):
                self._given_back += [(item, delay_seconds) for item in stay]
                self.wake.set()  # it was perhaps the repeater that tried
            raise
        finally:
            self._end(_without(items, stay), written)
        return stay


def _without(items: Sequence[Item], others: Sequence[Item]) -> Sequence[Item]:
    return [item for item in items if item not in set(others)] if others else items
