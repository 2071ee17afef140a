"""The leader executor: everything that executes under one cluster lease, for one term.

It puts the parts together, promotes the leader in a fixed order (the lease was acquired; rebuild
the due queue, verify the lease, act), and then aborts calls that take too long.

Every error of the database makes the leader step down: `on_error` tells the elector.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.executor.completer import Completer
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.executor.fences import LeaseFence
from leasehold.executor.leader.dispatcher import Dispatcher
from leasehold.executor.leader.due_queue import DueQueue
from leasehold.executor.leader.reader import Reader
from leasehold.executor.runner import Runner
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.coordination.term import Term
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.service.service import Service
    from leasehold.store.leader_protocol import LeaderStore

# Items that wait or are ready; each priority of a target has a quarter of the target's share.
SIZE_MAX = 20_000
# How often to look for calls that have lasted too long.
ABORT_SECONDS = 0.25
_IDLE = Pause(60.0)

_LOG = get_logger(__name__)


class LeaderExecutor:
    """Promotes the leader, and watches over its calls."""

    def __init__(
        self,
        store: LeaderStore,
        term: Term,
        slots: Slots,
        targets: Targets,
        metrics: Metrics,
        timings: Callable[[], Timings],
        *,
        confirm: Callable[[], Awaitable[None]],
        on_error: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
        observer: ObserverThread | None = None,
    ) -> None:
        self.name = f"leader {term.lease.name}"
        self.wake = asyncio.Event()
        self._term = term
        self._slots = slots
        self._confirm = confirm
        self._on_error = on_error
        self._faults = faults
        self._is_promoted = False
        self._queue = DueQueue(SIZE_MAX, LeaseFence(store, term.lease), term)
        self._completer = Completer(
            slots, metrics, on_error=on_error, faults=faults, observer=observer
        )
        self._runner = Runner(
            slots,
            targets,
            self._completer,
            metrics,
            on_error=on_error,
            faults=faults,
            observer=observer,
        )
        self._reader = Reader(
            store, term, self._queue, slots, targets, metrics, timings, on_error=on_error
        )
        self._dispatcher = Dispatcher(
            store,
            term,
            self._queue,
            slots,
            targets,
            self._runner,
            metrics,
            timings,
            on_error=on_error,
        )

    @property
    def services(self) -> list[Service]:
        """All services of the term, this one included."""
        return [self._completer, self._completer.repeater, self, self._reader, self._dispatcher]

    def hint(self) -> None:
        """Read what has changed now."""
        self._reader.hint()

    def close(self) -> None:
        """Start nothing more, and give back what was not called."""
        self._runner.close()

    def withdraw(self) -> None:
        """Give back the calls that were not sent: they are not sent any more."""
        self._runner.withdraw(self._slots.all())

    def forget(self) -> None:
        """Drop what is known of due work: the term has ended."""
        self._queue.serve(())

    async def leave(self) -> None:
        """Tell the database which calls are still in flight: a successor doubts only those."""
        await self._dispatcher.leave()

    async def step(self) -> Pause:
        """Promote the leader once; then abort the calls that take too long."""
        if self._term.is_over(self._slots.clock()):
            return _IDLE
        for item in self._slots.overdue():
            self._runner.abort(item)
        if not self._is_promoted and not self._term.is_closing:
            try:
                await self._promote()
            except Exception as error:  # noqa: BLE001 (whatever it is, the leader steps down)
                self._on_error(error)
        return Pause(ABORT_SECONDS)

    async def _promote(self) -> None:
        await self._reader.build()
        await self._faults.reach(FaultPoint.AFTER_REBUILD)
        await self._confirm()
        self._is_promoted = True
        self._dispatcher.open()
        _LOG.info("due_queue_built", lease_name=self._term.lease.name, size=len(self._queue))
