"""A leader session: what one instance runs while it leads one group.

A session is made for one term and ends with it, so nothing of one term can be written under the
epoch of another.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from leasehold.executor.leader.executor import LeaderExecutor
from leasehold.executor.slots import Slots
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Loop, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.coordination.elector import Elector
    from leasehold.coordination.term import Term
    from leasehold.domain.timing import Timings
    from leasehold.executor.item import Item
    from leasehold.runtime.sessions import Parts
    from leasehold.store.executor_protocol import LeaderHeartbeatStore

_JOIN_SECONDS = 2.0
_LEAVE_SECONDS = 2.0
_POLL_SECONDS = 0.02

_LOG = get_logger(__name__)


class LeaderSession:
    """The services of one term, from its start to its end."""

    def __init__(
        self,
        parts: Parts,
        elector: Elector,
        term: Term,
    ) -> None:
        self._slots = Slots(elector.holder_id, parts.pool)
        self._term = term
        self._metrics = parts.metrics

        def on_error(error: Exception) -> None:
            elector.step_down(term, error)

        async def confirm() -> None:
            await elector.confirm(term)

        self._executor = LeaderExecutor(
            parts.store,
            term,
            self._slots,
            parts.targets,
            parts.metrics,
            parts.timings,
            confirm=confirm,
            on_error=on_error,
            faults=parts.faults,
            observer=parts.observer,
        )
        heartbeat = LeaderHeartbeat(parts.store, term, self._detail, parts.timings, on_error)
        self._loops = [
            Loop(service, elector.holder_id) for service in (*self._executor.services, heartbeat)
        ]

    @property
    def in_flight(self) -> int:
        """How many items are in flight."""
        return len(self._slots)

    def hint(self) -> None:
        """Read what has changed now."""
        self._executor.hint()

    async def finish(self, seconds: float) -> None:
        """Start nothing more; let calls in flight end and be recorded, for at most this long."""
        self._executor.close()
        if not await self._has_ended(self._slots.all, seconds):
            # Too late for the others, but what was not sent must not be in doubt.
            self._executor.withdraw()
            await self._has_ended(self._given_back, _LEAVE_SECONDS)
        await self._leave()

    async def _has_ended(self, items: Callable[[], Sequence[Item]], seconds: float) -> bool:
        """Wait until these items have ended, or the term has; False if the time is over."""
        ends_at = time.monotonic() + seconds
        while items() and not self._term.ended.is_set():
            left = ends_at - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, _POLL_SECONDS))
        return True

    def _given_back(self) -> list[Item]:
        return [item for item in self._slots.all() if item.given_back_until is not None]

    async def abandon(self) -> None:
        """Drop everything: cancel calls, and write no result."""
        self._executor.close()
        self._slots.lose(self._slots.all())
        for loop in self._loops:
            loop.stop()
        await asyncio.gather(*(loop.join(_JOIN_SECONDS) for loop in self._loops))
        self._slots.close()
        self._executor.forget()
        self._metrics.schedule(self._term.lease.name, 0)

    async def _leave(self) -> None:
        """Unmark the calls that are not in flight, so that a successor does not put them in doubt.

        A courtesy, like the release that follows: stepping down does not wait long for it.
        """
        if self._term.ended.is_set():
            return
        try:
            await within_deadline(_LEAVE_SECONDS, self._executor.leave(), "unmarking calls")
        except Exception as error:  # noqa: BLE001 (calls are doubted needlessly; nothing is lost)
            _LOG.warning("unmark_failed", lease_name=self._term.lease.name, error=str(error))

    def _detail(self) -> dict[str, Any]:
        return {"in_flight": len(self._slots), "slots": self._slots.total}


class LeaderHeartbeat:
    """The service that shows people who leads. No decision reads it."""

    def __init__(
        self,
        store: LeaderHeartbeatStore,
        term: Term,
        detail: Callable[[], dict[str, Any]],
        timings: Callable[[], Timings],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.name = f"leader heartbeat {term.lease.name}"
        self.wake = asyncio.Event()
        self._store = store
        self._term = term
        self._detail = detail
        self._timings = timings
        self._on_error = on_error

    async def step(self) -> Pause:
        """Write the heartbeat, unless the term is closing. Any error makes the leader step down:
        an instance that cannot write must not lead.
        """
        pause = Pause(self._timings().cluster_renew_seconds)
        if self._term.is_closing:
            return pause
        try:
            await self._store.record_leader_heartbeat(self._term.lease, self._detail())
        except Exception as error:  # noqa: BLE001 (whatever it is, the leader steps down)
            self._on_error(error)
        return pause
