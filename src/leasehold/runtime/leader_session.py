"""A leader's term at work: its schedule, its calls, their results. Made for one term, and gone with
it, so that nothing of one term can be written under the epoch of another.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from leasehold.coordination.claims import Claims
from leasehold.executor.completer import Completer
from leasehold.executor.fence import LeaseFence
from leasehold.executor.leader.executor import LeaderExecutor
from leasehold.executor.runner import Runner
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.loop import Loop
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.coordination.elector import Elector
    from leasehold.coordination.term import Term
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore

_JOIN_SECONDS = 2.0
_LEAVE_SECONDS = 2.0
_LOOK_SECONDS = 0.02

_LOG = get_logger(__name__)


class LeaderSession:
    """What one instance does while it leads one group."""

    def __init__(
        self,
        store: ExecutorStore,
        targets: Targets,
        metrics: Metrics,
        timings: Callable[[], Timings],
        slots: int,
        elector: Elector,
        term: Term,
        faults: Faults,
    ) -> None:
        self._claims = Claims(elector.holder_id, slots)
        self._term = term

        def trouble(error: Exception) -> None:
            elector.step_down(term, error)

        async def confirm() -> None:
            await elector.confirm(term)

        self.executor = LeaderExecutor(
            store,
            term,
            self._claims,
            targets,
            metrics,
            timings,
            confirm=confirm,
            trouble=trouble,
            faults=faults,
        )
        fence = LeaseFence(store, term.lease, self.executor.put_off)
        completion = Completer(fence, self._claims, metrics, trouble=trouble, faults=faults)
        self._runner = self.executor.attempts = Runner(
            fence, self._claims, targets, completion, metrics, trouble=trouble, faults=faults
        )
        heartbeat = LeaderHeartbeat(store, term, self._detail, timings, trouble)
        self._loops = [
            Loop(service, elector.holder_id) for service in (completion, self.executor, heartbeat)
        ]

    @property
    def in_flight(self) -> int:
        """How much is being worked on."""
        return len(self._claims)

    def set_slots(self, slots: int) -> None:
        """Work on so many at once from now on."""
        self._claims.slots = slots
        self.executor.wake.set()

    async def finish(self, seconds: float) -> None:
        """Start nothing more; let what was started end and be written, for this long at most."""
        self._runner.close()
        ends_at = time.monotonic() + seconds
        while len(self._claims) and not self._term.ended.is_set():
            left = ends_at - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(left, _LOOK_SECONDS))
        await self._leave()

    async def abandon(self) -> None:
        """Drop everything: calls are cancelled, results are not written."""
        self._runner.close()
        self._claims.lose(self._claims.all())
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            await loop.join(_JOIN_SECONDS)

    async def _leave(self) -> None:
        """Unmark the calls that are in flight no more, so that a successor does not doubt them. A
        courtesy like the release that follows: whoever steps down does not wait long for it.
        """
        if self._term.ended.is_set():
            return
        try:
            await within_deadline(_LEAVE_SECONDS, self.executor.leave(), "the last mark")
        except Exception as error:  # noqa: BLE001 (more is doubted than need be; nothing is lost)
            _LOG.warning("calls_not_unmarked", lease_name=self._term.lease.name, error=str(error))

    def _detail(self) -> dict[str, Any]:
        return {"in_flight": len(self._claims), "slots": self._claims.slots}


class LeaderHeartbeat:
    """Shows who leads and that it lives, for people; nobody decides by it."""

    def __init__(
        self,
        store: ExecutorStore,
        term: Term,
        detail: Callable[[], dict[str, Any]],
        timings: Callable[[], Timings],
        trouble: Callable[[Exception], None],
    ) -> None:
        self.name = f"leader heartbeat {term.lease.name}"
        self.wake = asyncio.Event()
        self._store = store
        self._term = term
        self._detail = detail
        self._timings = timings
        self._trouble = trouble

    async def step(self) -> Pause:
        """Write it, unless the term is ending. What goes wrong with it is trouble like any other:
        a lease that it finds lost is lost, and whoever cannot write must not lead.
        """
        pause = Pause(self._timings().cluster_renew_seconds)
        if self._term.is_closing:
            return pause
        try:
            await self._store.record_leader_heartbeat(self._term.lease, self._detail())
        except Exception as error:  # noqa: BLE001 (whatever it was, the leader steps down for it)
            self._trouble(error)
        return pause
